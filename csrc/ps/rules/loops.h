/* SPDX-License-Identifier: Apache-2.0
 * The loops of one struct rdti_ps_kernels. Each file that compiles them for one kind of processor
 * includes this once, and defines TABLE, the name of the table, before. value, state and gradient
 * do not overlap. */
#include <math.h>
#include <stddef.h>

#include "ps/rules/rules.h"

static void
update_assign(const struct rdti_ps_factors *f, float *restrict value, float *restrict state,
              const float *restrict gradient, uint64_t count)
{
    (void)f;
    (void)state;
    for (uint64_t i = 0; i < count; i++)
        value[i] = gradient[i];
}

static void
update_add(const struct rdti_ps_factors *f, float *restrict value, float *restrict state,
           const float *restrict gradient, uint64_t count)
{
    (void)f;
    (void)state;
    for (uint64_t i = 0; i < count; i++)
        value[i] += gradient[i];
}

static void
update_sgd(const struct rdti_ps_factors *f, float *restrict value, float *restrict state,
           const float *restrict gradient, uint64_t count)
{
    const float lr = f->lr;
    const float decay = f->weight_decay;

    (void)state;
    for (uint64_t i = 0; i < count; i++)
        value[i] -= lr * (gradient[i] + decay * value[i]);
}

static void
update_momentum(const struct rdti_ps_factors *f, float *restrict value, float *restrict state,
                const float *restrict gradient, uint64_t count)
{
    const float lr = f->lr;
    const float decay = f->weight_decay;
    const float momentum = f->momentum;

    if (f->is_nesterov) {
        for (uint64_t i = 0; i < count; i++) {
            const float g = gradient[i] + decay * value[i];
            state[i] = momentum * state[i] + g;
            value[i] -= lr * (g + momentum * state[i]);
        }
        return;
    }
    for (uint64_t i = 0; i < count; i++) {
        state[i] = momentum * state[i] + (gradient[i] + decay * value[i]);
        value[i] -= lr * state[i];
    }
}

static void
update_adagrad(const struct rdti_ps_factors *f, float *restrict value, float *restrict state,
               const float *restrict gradient, uint64_t count)
{
    const float lr = f->lr;
    const float eps = f->eps;

    for (uint64_t i = 0; i < count; i++) {
        const float g = gradient[i];
        state[i] += g * g;
        value[i] -= lr * (g / (sqrtf(state[i]) + eps));
    }
}

/* One float of state for the span: the sum of the mean squares. */
static void
update_row_adagrad(const struct rdti_ps_factors *f, float *restrict value, float *restrict state,
                   const float *restrict gradient, uint64_t count)
{
    float sums[RDTI_PS_LANES] = {0};
    uint64_t i = 0;

    if (count == 0)
        return;
    for (; i + RDTI_PS_LANES <= count; i += RDTI_PS_LANES)
        for (uint64_t lane = 0; lane < RDTI_PS_LANES; lane++)
            sums[lane] += gradient[i + lane] * gradient[i + lane];
    for (uint64_t lane = 0; i < count; i++, lane++)
        sums[lane] += gradient[i] * gradient[i];
    for (uint64_t width = RDTI_PS_LANES / 2; width > 0; width /= 2)
        for (uint64_t lane = 0; lane < width; lane++)
            sums[lane] += sums[lane + width];
    state[0] += sums[0] / (float)count;
    const float by = f->lr / (sqrtf(state[0]) + f->eps);
    for (i = 0; i < count; i++)
        value[i] -= by * gradient[i];
}

/* torch.optim.SparseAdam: eps is added to the root before the second bias correction. */
static void
update_lazy_adam(const struct rdti_ps_factors *f, float *restrict value, float *restrict state,
                 const float *restrict gradient, uint64_t count)
{
    float *restrict mean = state;
    float *restrict square = state + count;
    const float gradient1 = f->gradient1;
    const float gradient2 = f->gradient2;
    const float step_size = f->step_size;
    const float eps = f->eps;

    for (uint64_t i = 0; i < count; i++) {
        const float g = gradient[i];
        mean[i] += gradient1 * (g - mean[i]);
        square[i] += gradient2 * (g * g - square[i]);
        value[i] -= step_size * (mean[i] / (sqrtf(square[i]) + eps));
    }
}

/* torch.optim.Adam, and with kept < 1 AdamW: eps is added after the second bias correction. */
static void
update_adam(const struct rdti_ps_factors *f, float *restrict value, float *restrict state,
            const float *restrict gradient, uint64_t count)
{
    float *restrict mean = state;
    float *restrict square = state + count;
    const float decay = f->weight_decay;
    const float kept = f->kept;
    const float gradient1 = f->gradient1;
    const float beta2 = f->beta2;
    const float gradient2 = f->gradient2;
    const float step_size = f->step_size;
    const float root2 = f->root2;
    const float eps = f->eps;

    for (uint64_t i = 0; i < count; i++) {
        const float g = gradient[i] + decay * value[i];
        mean[i] += gradient1 * (g - mean[i]);
        square[i] = beta2 * square[i] + gradient2 * (g * g);
        value[i] = kept * value[i] - step_size * (mean[i] / (sqrtf(square[i]) / root2 + eps));
    }
}

static void
add_floats(float *restrict dst, const float *restrict src, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        dst[i] += src[i];
}

static void
divide_floats(float *dst, float divisor, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        dst[i] /= divisor;
}

const struct rdti_ps_kernels TABLE = {
    .update =
        {
            [RDT_PS_ASSIGN] = update_assign,
            [RDT_PS_ADD] = update_add,
            [RDT_PS_SGD] = update_sgd,
            [RDT_PS_MOMENTUM] = update_momentum,
            [RDT_PS_ADAGRAD] = update_adagrad,
            [RDT_PS_ROW_ADAGRAD] = update_row_adagrad,
            [RDT_PS_LAZY_ADAM] = update_lazy_adam,
            [RDT_PS_ADAM] = update_adam,
            [RDT_PS_ADAMW] = update_adam,
        },
    .add = add_floats,
    .divide = divide_floats,
};
