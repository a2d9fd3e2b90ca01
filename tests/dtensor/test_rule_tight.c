/* tests/dtensor/test_rule_tight.c - do rules refuse what would be right? On one axis of 2 and of 3
 * ranks, every placement of the operands that an op refuses is computed all the same, its result
 * called R, S(d) and P in turn: where the local arrays happen to be the truth on both axes, the
 * rule is too strict. Every rank is played by this process (fake worlds), as no op here
 * communicates. Other half of test_fuzz.c, which finds rules that are too generous. */
#include "dtensor/ops/nn_internal.h"
#include "tests/dtensor/op_check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS = 3, MAX_ROWS = 1024, MAX_CLAIMS = 8 };

/* words: a letter a dim; operands, then the result. */
typedef struct tight_op {
    const dt_op *op;
    const char *words;
    const void *attr;
    int too_strict; /* rows refused but right */
} tight_op;

static const double factor = 1.7;
static const dti_norm_attributes rms = {0.1, false}, layer = {0.1, true};
static const dt_rope_options turns = {.theta = 30};
static const uint32_t last_dim = 4;
static const int no_attr[8];

/* Planted, to be noticed: silu that wants its last dim whole, add without P. Set in main. */
static dt_op strict_silu, strict_add;

static const tight_op ops[] = {
    {&strict_silu, "bsn->bsn", NULL, 1},    /* S(2) -> S(2) */
    {&strict_add, "bsn,bsn->bsn", NULL, 1}, /* P P -> P */
    {&dt_op_linear, "bsk,nk,n->bsn", NULL, 0}, {&dt_op_matmul, "bsk,bkn->bsn", NULL, 0},
    {&dt_op_add, "bsn,bsn->bsn", NULL, 0},     {&dt_op_add, "bsn,n->bsn", NULL, 0},
    {&dt_op_mul, "bsn,bsn->bsn", NULL, 0},     {&dt_op_mul, "bsn,n->bsn", NULL, 0},
    {&dt_op_sum, "bsn->bs", &last_dim, 0},     {&dt_op_scale, "bsn->bsn", &factor, 0},
    {&dt_op_softmax, "bsn->bsn", NULL, 0},     {&dt_op_silu, "bsn->bsn", NULL, 0},
    {&dt_op_gelu, "bsn->bsn", no_attr, 0},     {&dt_op_swiglu, "bsn,bsn->bsn", NULL, 0},
    {&dt_op_rmsnorm, "bsn,n->bsn", &rms, 0},   {&dt_op_layernorm, "bsn,n,n->bsn", &layer, 0},
    {&dt_op_rmsnorm, "bsn->bsn", &rms, 0},     {&dt_op_layernorm, "bsn->bsn", &layer, 0},
    {&dt_op_rope, "bhsd->bhsd", &turns, 0},
};

static int64_t size_of(char letter)
{
    return letter == 'd' ? 4 : letter == 'n' ? 5 : letter == 'b' ? 4 : 3;
}

/* ---- words ---- */

typedef struct parsed {
    int nin;
    char word[DT_OP_MAX_IN + 1][DT_MAX_DIMS + 1]; /* the result last */
    dt_shape shape[DT_OP_MAX_IN + 1];
} parsed;

static parsed parse(const char *words)
{
    parsed p = {0};
    int w = 0;
    for (; *words; words++) {
        if (*words == ',' || *words == '>')
            w++;
        else if (*words != '-') {
            p.word[w][p.shape[w].ndim] = *words;
            p.shape[w].dim[p.shape[w].ndim++] = size_of(*words);
        }
    }
    p.nin = w;
    return p;
}

/* Placement number k: R, S(0), S(1), ..., P. */
static dt_layout placed(const dt_grid *grid, dt_shape shape, int k)
{
    dt_layout l = dt_layout_replicated(grid, shape);
    if (k > 0 && k <= shape.ndim)
        dt_layout_shard(&l, 0, k - 1);
    l.partial = k > shape.ndim;
    return l;
}

/* ---- claims: what the result is called; set between applications ---- */

static dt_shape claimed_shape;
static int claim;

static dt_status infer_claim(dt_rule *r)
{
    r->out[0] = placed(r->in[0]->grid, claimed_shape, claim);
    return DT_OK;
}

static uint64_t claim_key(const void *attr)
{
    (void)attr;
    return (uint64_t)claim;
}

/* ---- ranks ---- */

typedef struct play {
    int k;
    dt_world *world[RANKS];
    dt_mesh *mesh[RANKS];
    dt_tape *tape[RANKS];
    const tight_op *t;
    parsed p;
    dt_op claiming;
    double *truth;
} play;

static const op_check_spec values = {.nin = DT_OP_MAX_IN};

/* The op on a rank's own part; the local result (NULL: refused). */
static const dt_array *apply(play *y, const dt_op *op, int rank, const int *at, dt_tensor **leaf)
{
    const dt_layout *layout;
    dt_tape_reset(y->tape[rank], &(dt_tape_options){.no_grad = true});
    for (int i = 0; i < y->p.nin; i++) {
        const dt_layout l = placed(dt_mesh_grid(y->mesh[rank]), y->p.shape[i], at[i]);
        dt_tensor_destroy(&leaf[i]);
        ck_ok(dt_mesh_layout(y->mesh[rank], &l, &layout));
        ck_ok(op_check_operand(&values, i, layout, &leaf[i]));
    }
    dt_tensor *out = dt_op_apply(y->tape[rank], op, y->t->attr, op->nin, leaf);
    dt_error_clear();
    return dt_tensor_is_failed(out) ? NULL : dt_tensor_local(out);
}

/* Equal letters must be equally long in the local arrays, or the op's loops would run past them. */
static bool fits(const play *y, int rank, const int *at)
{
    int64_t size[128];
    memset(size, -1, sizeof size);
    for (int w = 0; w <= y->p.nin; w++) {
        const int k = w < y->p.nin ? at[w] : claim;
        const dt_layout l = placed(dt_mesh_grid(y->mesh[rank]), y->p.shape[w], k);
        const dt_shape s = dt_layout_local(&l, dt_mesh_coord(y->mesh[rank]), NULL);
        for (int d = 0; d < s.ndim; d++) {
            int64_t *have = &size[(int)y->p.word[w][d]];
            if (*have >= 0 && *have != s.dim[d])
                return false;
            *have = s.dim[d];
        }
    }
    return true;
}

/* Add the local result to the whole, or compare it. */
static bool settle(const play *y, int rank, const dt_array *local, double *whole)
{
    const dt_layout l = placed(dt_mesh_grid(y->mesh[rank]), claimed_shape, claim);
    int64_t offset[DT_MAX_DIMS];
    const dt_shape s = dt_layout_local(&l, dt_mesh_coord(y->mesh[rank]), offset);
    const double *mine = test_look(local);
    for (int64_t j = 0; j < dt_shape_count(s); j++) {
        int64_t rest = j, index = 0, stride = 1;
        for (int d = s.ndim - 1; d >= 0; d--) {
            index += (offset[d] + rest % s.dim[d]) * stride;
            stride *= claimed_shape.dim[d];
            rest /= s.dim[d];
        }
        whole[index] += mine[j];
        if (!l.partial && !(fabs(mine[j] - y->truth[index]) < 1e-9))
            return false;
    }
    return true;
}

static bool claim_is_right(play *y, const int *at, dt_tensor **leaf)
{
    const int64_t n = dt_shape_count(claimed_shape);
    double *whole = calloc((size_t)n, sizeof *whole);
    bool right = whole != NULL;
    for (int r = 0; r < y->k && right; r++)
        right = fits(y, r, at);
    for (int r = 0; r < y->k && right; r++)
        right = settle(y, r, apply(y, &y->claiming, r, at, leaf), whole);
    for (int64_t j = 0; claim > claimed_shape.ndim && j < n && right; j++)
        right = fabs(whole[j] - y->truth[j]) < 1e-9;
    free(whole);
    return right;
}

/* ---- the sweep ---- */

static void start(play *y, int k, const tight_op *t)
{
    *y = (play){.k = k, .t = t, .p = parse(t->words), .claiming = *t->op};
    y->claiming.rule = NULL;
    y->claiming.infer = infer_claim;
    y->claiming.key = claim_key;
    claimed_shape = y->p.shape[y->p.nin];
    for (int r = 0; r < k; r++) {
        const dt_world_options fake = {.backend = DT_BACKEND_FAKE, .fake_rank = r, .fake_size = k};
        ck_ok(dt_world_create(&fake, &y->world[r]));
        ck_ok(dt_mesh_create(y->world[r], (dt_device){DT_CPU, 0},
                             &(dt_mesh_options){.axes = {{"axis", k}}}, &y->mesh[r]));
        ck_ok(dt_tape_create(y->mesh[r], NULL, &y->tape[r]));
    }
}

static void stop(play *y)
{
    for (int r = 0; r < y->k; r++) {
        dt_tape_destroy(&y->tape[r]);
        dt_mesh_destroy(&y->mesh[r]);
        dt_world_destroy(&y->world[r]);
    }
    free(y->truth);
}

static void keep_truth(play *y, dt_tensor **leaf)
{
    const int whole[DT_OP_MAX_IN] = {0};
    const dt_array *local = apply(y, y->t->op, 0, whole, leaf);
    const size_t bytes = (size_t)dt_shape_count(claimed_shape) * sizeof *y->truth;
    y->truth = malloc(bytes);
    ck_assert(local && y->truth);
    memcpy(y->truth, test_look(local), bytes);
}

/* right[row][claim]: refused on this axis too, and right. Gives the number of rows refused. */
static int sweep(int k, const tight_op *t, bool right[MAX_ROWS][MAX_CLAIMS])
{
    play y;
    dt_tensor *leaf[DT_OP_MAX_IN] = {NULL};
    int at[DT_OP_MAX_IN + 1] = {0}, refused = 0;
    start(&y, k, t);
    keep_truth(&y, leaf);
    for (int row = 0; at[y.p.nin] == 0; row++) {
        const bool refuses = !apply(&y, t->op, 0, at, leaf);
        refused += refuses;
        ck_assert_int_lt(row, MAX_ROWS);
        for (claim = 0; claim < claimed_shape.ndim + 2; claim++)
            right[row][claim] = right[row][claim] && refuses && claim_is_right(&y, at, leaf);
        int i = 0;
        while (i < y.p.nin && ++at[i] == y.p.shape[i].ndim + 2)
            at[i++] = 0;
        at[y.p.nin] = i == y.p.nin;
    }
    for (int i = 0; i < y.p.nin; i++)
        dt_tensor_destroy(&leaf[i]);
    stop(&y);
    return refused;
}

static void print_row(const parsed *p, int row, int as)
{
    for (int i = 0; i <= p->nin; i++) {
        const int choices = p->shape[i].ndim + 2, k = i < p->nin ? row % choices : as;
        row /= choices;
        printf("%s", i == p->nin ? " -> " : i ? " " : "    ");
        if (k == 0 || k > p->shape[i].ndim)
            printf("%s", k ? "P" : "R");
        else
            printf("S(%d)", k - 1);
    }
    printf("\n");
}

START_TEST(test_refused)
{
    const tight_op *t = &ops[_i];
    static bool right[MAX_ROWS][MAX_CLAIMS];
    memset(right, true, sizeof right);
    int refused = 0, found = 0;
    for (int k = 2; k <= RANKS; k++)
        refused = sweep(k, t, right);
    const parsed p = parse(t->words);
    printf("%s %s: %d placements refused\n", t->op->name, t->words, refused);
    for (int row = 0; row < MAX_ROWS; row++)
        for (int as = 0; as < claimed_shape.ndim + 2; as++) {
            int rows = 1;
            for (int i = 0; i < p.nin; i++)
                rows *= p.shape[i].ndim + 2;
            if (row >= rows || !right[row][as])
                continue;
            print_row(&p, row, as);
            found++;
        }
    ck_assert_int_eq(found, t->too_strict);
}
END_TEST

int main(void)
{
    strict_silu = dt_op_silu;
    strict_silu.rule = "...N->...N";
    strict_add = dt_op_add;
    strict_add.linear = 0;
    Suite *suite = suite_create("rules that are too strict");
    TCase *tc = tcase_create("refused placements");
    tcase_set_timeout(tc, 100);
    tcase_add_loop_test(tc, test_refused, 0, DT_COUNT(ops));
    suite_add_tcase(suite, tc);
    return test_main(suite);
}
