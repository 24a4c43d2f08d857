/* SPDX-License-Identifier: Apache-2.0
 * Update rules of a parameter server: what a gradient does to a row and to the row's state.
 *
 * A kernel updates one span of `count` elements. Its state is some arrays of `count` floats, one
 * after the other, or one float for the whole span (RDT_PS_ROW_ADAGRAD). All tables of kernels give
 * the same bits: each element is computed by the same IEEE operations in the same order, and sums
 * over a span have RDTI_PS_LANES partial sums.
 */
#ifndef RDTI_PS_RULES_RULES_H
#define RDTI_PS_RULES_RULES_H

#include "rdmatensor_ps.h"

enum { RDTI_PS_RULE_LIMIT = RDT_PS_CUSTOM + 1, RDTI_PS_LANES = 8 };

/* What a rule multiplies by in one application, rounded to float once. */
struct rdti_ps_factors {
    float lr;
    float momentum;
    float weight_decay;
    float eps;
    float beta1;     /* 1 - beta1 is its weight of the gradient */
    float gradient1; /* 1 - beta1 */
    float beta2;
    float gradient2; /* 1 - beta2 */
    float step_size; /* Adam: with the bias corrections that the rule applies to it */
    float root2;     /* ADAM, ADAMW: square root of the second bias correction */
    float kept;      /* ADAMW: 1 - lr * weight_decay */
    uint32_t is_nesterov;
};

typedef void (*rdti_ps_kernel)(const struct rdti_ps_factors *factors, float *value, float *state,
                               const float *gradient, uint64_t count);

struct rdti_ps_kernels {
    rdti_ps_kernel update[RDTI_PS_RULE_LIMIT]; /* RDT_PS_CUSTOM has none */
    /* dst[i] += src[i], dst[i] /= divisor */
    void (*add)(float *dst, const float *src, uint64_t count);
    void (*divide)(float *dst, float divisor, uint64_t count);
};

extern const struct rdti_ps_kernels rdti_ps_kernels_generic;
#if defined(__x86_64__)
/* Only where rdti_ps_has_avx2() says so. */
extern const struct rdti_ps_kernels rdti_ps_kernels_avx2;
#endif
int rdti_ps_has_avx2(void);
/* The fastest kernels that this processor can run. */
const struct rdti_ps_kernels *rdti_ps_kernels_best(void);

/* Floats of state of a span of `count` elements. The rule is valid. */
uint64_t rdti_ps_rule_state_floats(const struct rdt_ps_rule *rule, uint64_t count);
/* What the state holds before the first update. */
float rdti_ps_rule_initial(const struct rdt_ps_rule *rule);
/* `step` counts the applications from 1 on; lr_scale multiplies the rule's learning rate. */
void rdti_ps_rule_factors(const struct rdt_ps_rule *rule, uint64_t step, double lr_scale,
                          struct rdti_ps_factors *out);
/* Whether pushes of several workers are averaged: gradients are, values and increments are not. */
int rdti_ps_rule_is_mean(const struct rdt_ps_rule *rule);
/* Whether the last of several pushes of a row replaces the others; else they are summed. */
int rdti_ps_rule_is_last(const struct rdt_ps_rule *rule);

#endif
