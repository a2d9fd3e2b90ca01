/* optim/scaler.c - see optim/dt_scaler.h. */
#include "optim/dt_scaler.h"

#include <math.h>

#define LARGEST 0x1p120 /* the loss is f32 */

dt_scaler dt_scaler_start(void)
{
    return (dt_scaler){.scale = 0x1p16, .interval = 2000};
}

dt_status dt_scaler_update(dt_scaler *s, double norm, double *factor_out, bool *apply_out)
{
    const bool fits = isfinite(norm);
    DT_REQUIRE(fits || s->scale > 1, DT_ERR_STATE,
               "gradients overflow even unscaled (norm %g, loss scale 1)", norm);
    *factor_out = 1 / s->scale;
    *apply_out = fits;
    s->good++;
    if (!fits) {
        s->scale /= 2;
        s->good = 0;
        s->skipped++;
    } else if (s->good >= s->interval) {
        s->scale = s->scale < LARGEST ? 2 * s->scale : s->scale;
        s->good = 0;
    }
    return DT_OK;
}
