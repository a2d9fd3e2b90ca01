/* tests/dtensor/test_rule_table.c - dt_rules_print against the table of the specification,
 * RULES.txt, block by block. The file's path is the program's argument. */
#include "dtensor/ops/rearrange_internal.h"
#include "tests/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ALL = 0xff };

/* One entry a block of RULES.txt, in its order. `op`: the op whose own rule and linear operands
 * are printed; NULL: any sum of products, by the letters of `spec`. */
typedef struct block {
    const char *name, *spec;
    const dt_op *op;
    const void *attr;
} block;

static dti_pattern split_heads, merge_heads;
static const int64_t select_2_of_dim_1[] = {1, 2, 3}; /* dim, lo, hi */

static const block blocks[] = {
    {"product bsk,nk->bsn", "bsk,nk->bsn", &dt_op_linear, NULL},
    {"product bsk,nk+n->bsn", "bsk,nk+n->bsn", &dt_op_linear, NULL},
    {"product bk,kcn+cn->bcn", "bk,kcn+cn->bcn", &dt_op_linear_in_out, NULL},
    {"product bsn+bsn->bsn", "bsn+bsn->bsn", &dt_op_add, NULL},
    {"product bsn+sn->bsn", "bsn+sn->bsn", &dt_op_add, NULL},
    {"product bsn,bsn->bsn", "bsn,bsn->bsn", &dt_op_mul, NULL},
    {"product bn,n+b,b->bn", "bn,n+b,b->bn", NULL, NULL},
    {"product bsn,n->bs", "bsn,n->bs", NULL, NULL},
    {"product bsn->", "bsn->", NULL, NULL},
    {"product bk,kn,nc->bc", "bk,kn,nc->bc", NULL, NULL},
    {"product bsn,bsn->", "bsn,bsn->", NULL, NULL},
    {"scale", "bsn->bsn", &dt_op_scale, NULL},
    {"silu", "bsn->bsn", &dt_op_silu, NULL},
    {"gelu", "bsn->bsn", &dt_op_gelu, NULL},
    {"softmax", "bsN->bsN", &dt_op_softmax, NULL},
    {"rmsnorm", "bsN,N->bsN", &dt_op_rmsnorm, NULL},
    {"layernorm", "bsN,N+N->bsN", &dt_op_layernorm, NULL},
    {"rope", "bhsD->bhsD", &dt_op_rope, NULL},
    {"attention", "bhsD,bgSD,bgSd->bhsd", &dt_op_attention, NULL},
    {"split heads", "bsk->", &dt_op_rearrange, &split_heads},
    {"merge heads", "bhsd->", &dt_op_rearrange, &merge_heads},
    {"select", "bSn->bn", &dt_op_select, select_2_of_dim_1},
};

/* The block being printed, for its infer. */
static const block *current;

/* As the op is applied: optional operands that the words lack are left out. */
static dt_status infer_current(dt_rule *r)
{
    const dt_op *op = current->op;
    dt_rule full = *r;
    if (op && op->nin < DT_OP_MAX_IN)
        full.nin = op->nin;
    DT_TRY(op && op->infer ? op->infer(&full)
                           : dt_rule_letters(&full, op ? op->rule : current->spec, NULL));
    r->out[0] = full.out[0];
    memcpy(r->zeroed, full.zeroed, sizeof r->zeroed);
    return DT_OK;
}

static const char *table_path;

typedef struct reader {
    FILE *file;
    char line[256];
    int number;
} reader;

static bool next_line(reader *r)
{
    r->number++;
    if (!fgets(r->line, sizeof r->line, r->file))
        return false;
    r->line[strcspn(r->line, "\n")] = 0;
    return true;
}

static void compare_line(void *arg, const char *line)
{
    reader *r = arg;
    ck_assert_msg(next_line(r), "the table ends before: %s", line);
    ck_assert_msg(!strcmp(line, r->line), "line %d: printed\n%s\nwant\n%s", r->number, line,
                  r->line);
}

START_TEST(test_printed_table_is_the_specification)
{
    reader r = {.file = fopen(table_path, "r")};
    ck_assert_msg(r.file, "cannot read %s", table_path);
    ck_ok(dti_pattern_parse("b s (x y) -> b x s y", "y=2", &split_heads));
    ck_ok(dti_pattern_parse("b h s d -> b s (h d)", NULL, &merge_heads));
    for (int i = 0; i < DT_COUNT(blocks); i++) {
        const block *b = current = &blocks[i];
        const int before = r.number;
        ck_ok(dt_rules_print(b->name, b->spec, b->op ? b->op->linear : ALL, infer_current, b->attr,
                             compare_line, &r));
        printf("compared %-26s %2d rows\n", b->name, r.number - before - 1);
    }
    ck_assert_msg(!next_line(&r), "line %d: more rows in the table: %s", r.number, r.line);
    fclose(r.file);
}
END_TEST

static void ignore_line(void *arg, const char *line)
{
    (void)arg;
    (void)line;
}

START_TEST(test_malformed_words_are_refused)
{
    static const char *const bad[] = {"bsn", "...->...", "bs n->b", "a,b,c,d,e,f,g,h,i->a"};
    for (int i = 0; i < DT_COUNT(bad); i++)
        ck_assert_int_eq(dt_rules_print("bad", bad[i], ALL, NULL, NULL, ignore_line, NULL),
                         DT_ERR_ARG);
    ck_assert_int_eq(dt_rules_print("bad", "b->c", ALL, NULL, NULL, ignore_line, NULL), DT_ERR_ARG);
}
END_TEST

int main(int argc, char **argv)
{
    table_path = argc > 1 ? argv[1] : "tests/dtensor/RULES.txt";
    Suite *suite = suite_create("rule table");
    TCase *tc = tcase_create("table");
    tcase_add_test(tc, test_printed_table_is_the_specification);
    tcase_add_test(tc, test_malformed_words_are_refused);
    suite_add_tcase(suite, tc);
    return test_main(suite);
}
