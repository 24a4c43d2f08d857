/* SPDX-License-Identifier: Apache-2.0
 * What rules need: checks, sizes, factors, and the choice of kernels. */
#include "ps/rules/rules.h"

#include <math.h>
#include <stdatomic.h>

#include "base/error.h"

int
rdti_ps_has_avx2(void)
{
#if defined(__x86_64__)
    return __builtin_cpu_supports("avx2") != 0;
#else
    return 0;
#endif
}

const struct rdti_ps_kernels *
rdti_ps_kernels_best(void)
{
#if defined(__x86_64__)
    /* All threads store the same value. relaxed: pairs with this function in other threads. */
    static atomic_int answer; /* 0 unknown, 1 no, 2 yes */
    int known = atomic_load_explicit(&answer, memory_order_relaxed);

    if (known == 0) {
        known = rdti_ps_has_avx2() ? 2 : 1;
        atomic_store_explicit(&answer, known, memory_order_relaxed);
    }
    if (known == 2)
        return &rdti_ps_kernels_avx2;
#endif
    return &rdti_ps_kernels_generic;
}

/* Arrays of state, of the length of the values; -1 for one float. */
static int
rules_arrays(uint32_t kind)
{
    switch (kind) {
    case RDT_PS_MOMENTUM:
    case RDT_PS_ADAGRAD:
        return 1;
    case RDT_PS_ROW_ADAGRAD:
        return -1;
    case RDT_PS_LAZY_ADAM:
    case RDT_PS_ADAM:
    case RDT_PS_ADAMW:
        return 2;
    default:
        return 0;
    }
}

uint64_t
rdti_ps_rule_state_floats(const struct rdt_ps_rule *rule, uint64_t count)
{
    const int arrays = rules_arrays(rule->kind);

    if (rule->kind == RDT_PS_CUSTOM)
        return rule->state_floats;
    return arrays < 0 ? 1 : (uint64_t)arrays * count;
}

float
rdti_ps_rule_initial(const struct rdt_ps_rule *rule)
{
    const int has_initial = rule->kind == RDT_PS_ADAGRAD || rule->kind == RDT_PS_ROW_ADAGRAD ||
                            rule->kind == RDT_PS_CUSTOM;

    return has_initial ? (float)rule->initial : 0.0f;
}

int
rdti_ps_rule_is_mean(const struct rdt_ps_rule *rule)
{
    return rule->kind != RDT_PS_ASSIGN && rule->kind != RDT_PS_ADD && rule->is_sum == 0;
}

int
rdti_ps_rule_is_last(const struct rdt_ps_rule *rule)
{
    return rule->kind == RDT_PS_ASSIGN;
}

void
rdti_ps_rule_factors(const struct rdt_ps_rule *rule, uint64_t step, double lr_scale,
                     struct rdti_ps_factors *out)
{
    const double lr = rule->lr * lr_scale;
    const double correction1 = 1.0 - pow(rule->beta1, (double)step);
    const double correction2 = 1.0 - pow(rule->beta2, (double)step);
    double step_size = lr;

    if (rule->kind == RDT_PS_LAZY_ADAM)
        step_size = lr * sqrt(correction2) / correction1;
    else if (rule->kind == RDT_PS_ADAM || rule->kind == RDT_PS_ADAMW)
        step_size = lr / correction1;
    *out = (struct rdti_ps_factors){
        .lr = (float)lr,
        .momentum = (float)rule->momentum,
        .weight_decay = rule->kind == RDT_PS_ADAMW ? 0.0f : (float)rule->weight_decay,
        .eps = (float)rule->eps,
        .beta1 = (float)rule->beta1,
        .gradient1 = (float)(1.0 - rule->beta1),
        .beta2 = (float)rule->beta2,
        .gradient2 = (float)(1.0 - rule->beta2),
        .step_size = (float)step_size,
        .root2 = (float)sqrt(correction2),
        .kept = rule->kind == RDT_PS_ADAMW ? (float)(1.0 - lr * rule->weight_decay) : 1.0f,
        .is_nesterov = rule->nesterov,
    };
}

static rdt_status
rules_check_number(double value, double below, const char *name, struct rdt_error *err)
{
    if (value >= 0.0 && value < below) /* false for a NaN */
        return RDT_OK;
    return rdti_error_set(err, RDT_EINVAL, 0, "rule: %s %g is not from 0 to below %g", name, value,
                          below);
}

/* What only RDT_PS_CUSTOM has. */
static rdt_status
rules_check_custom(const struct rdt_ps_rule *rule, struct rdt_error *err)
{
    if (rule->kind != RDT_PS_CUSTOM && (rule->state_floats > 0 || rule->is_sum > 0))
        return rdti_error_set(err, RDT_EINVAL, 0, "rule %u has a state of its own", rule->kind);
    if (rule->state_floats > RDT_PS_STATE_MAX || rule->is_sum > 1)
        return rdti_error_set(err, RDT_EINVAL, 0, "rule: a state of %u floats, at most %d",
                              rule->state_floats, RDT_PS_STATE_MAX);
    return RDT_OK;
}

static rdt_status
rules_check_use(const struct rdt_ps_rule *rule, struct rdt_error *err)
{
    const int is_momentum = rule->kind == RDT_PS_MOMENTUM;
    const int decays = rule->kind == RDT_PS_SGD || is_momentum || rule->kind == RDT_PS_ADAM ||
                       rule->kind == RDT_PS_ADAMW;

    if (rule->momentum != 0.0 && !is_momentum)
        return rdti_error_set(err, RDT_EINVAL, 0, "rule %u has no momentum", rule->kind);
    if (rule->nesterov > 1 || (rule->nesterov == 1 && !is_momentum))
        return rdti_error_set(err, RDT_EINVAL, 0, "rule: nesterov %u needs a momentum",
                              rule->nesterov);
    if (rule->weight_decay != 0.0 && !decays)
        return rdti_error_set(err, RDT_EINVAL, 0, "rule %u has no weight decay", rule->kind);
    return rules_check_custom(rule, err);
}

rdt_status
rdt_ps_rule_check(const struct rdt_ps_rule *rule, struct rdt_error *err)
{
    static const double any = 1e30;

    if (rule == NULL || rule->struct_size != sizeof(*rule))
        return rdti_error_set(err, RDT_EINVAL, 0, "rule: not a struct of this version");
    if (rule->kind == 0 || rule->kind >= RDTI_PS_RULE_LIMIT)
        return rdti_error_set(err, RDT_EINVAL, 0, "rule: kind %u does not exist", rule->kind);
    const struct {
        double value;
        double below;
        const char *name;
    } numbers[] = {
        {rule->lr, any, "lr"},           {rule->momentum, any, "momentum"},
        {rule->eps, any, "eps"},         {rule->weight_decay, any, "weight_decay"},
        {rule->initial, any, "initial"}, {rule->beta1, 1.0, "beta1"},
        {rule->beta2, 1.0, "beta2"},
    };
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        const rdt_status status =
            rules_check_number(numbers[i].value, numbers[i].below, numbers[i].name, err);
        if (status != RDT_OK)
            return status;
    }
    return rules_check_use(rule, err);
}

uint64_t
rdt_ps_rule_state_floats(const struct rdt_ps_rule *rule, uint64_t count)
{
    return rdti_ps_rule_state_floats(rule, count);
}

rdt_status
rdt_ps_rule_apply(const struct rdt_ps_rule *rule, uint64_t step, double lr_scale, float *value,
                  float *state, const float *gradient, uint64_t count, struct rdt_error *err)
{
    struct rdti_ps_factors factors;
    rdt_status status = rdt_ps_rule_check(rule, err);

    if (status == RDT_OK && rule->kind == RDT_PS_CUSTOM)
        status = rdti_error_set(err, RDT_EINVAL, 0, "rule: only a table applies RDT_PS_CUSTOM");
    if (status == RDT_OK && step == 0)
        status = rdti_error_set(err, RDT_EINVAL, 0, "rule: steps count from 1 on");
    if (status != RDT_OK)
        return status;
    rdti_ps_rule_factors(rule, step, lr_scale, &factors);
    rdti_ps_kernels_best()->update[rule->kind](&factors, value, state, gradient, count);
    return RDT_OK;
}
