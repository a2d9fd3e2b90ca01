/* tests/dtensor/test_rule_table.c - dt_rules_print against the table of the specification, RULES.txt, block by block.
 * The file's path is the program's argument. */
#include "dtensor/dt_op.h"
#include "tests/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ALL = 0xff };

/* One entry a block of RULES.txt, in its order. `op`: the op whose own rule is printed; NULL: the letters of `spec` are.
 * `absent`: the op with these hand-written rows is not there; the test says so and passes over the block. */
typedef struct block {
    const char *name, *spec;
    uint32_t linear;
    const dt_op *op;
    const void *attr;
    bool absent;
} block;

static const block blocks[] = {
    {"product bsk,nk->bsn", "bsk,nk->bsn", ALL, NULL, NULL, false},
    {"product bsk,nk+n->bsn", "bsk,nk+n->bsn", ALL, NULL, NULL, false},
    {"product bk,kcn+cn->bcn", "bk,kcn+cn->bcn", ALL, NULL, NULL, false},
    {"product bsn+bsn->bsn", "bsn+bsn->bsn", ALL, NULL, NULL, false},
    {"product bsn+sn->bsn", "bsn+sn->bsn", ALL, NULL, NULL, false},
    {"product bsn,bsn->bsn", "bsn,bsn->bsn", ALL, NULL, NULL, false},
    {"product bn,n+b,b->bn", "bn,n+b,b->bn", ALL, NULL, NULL, false},
    {"product bsn,n->bs", "bsn,n->bs", ALL, NULL, NULL, false},
    {"product bsn->", "bsn->", ALL, NULL, NULL, false},
    {"product bk,kn,nc->bc", "bk,kn,nc->bc", ALL, NULL, NULL, false},
    {"product bsn,bsn->", "bsn,bsn->", ALL, NULL, NULL, false},
    {"scale", "bsn->bsn", ALL, NULL, NULL, false},
    {"silu", "bsn->bsn", 0, NULL, NULL, false},
    {"gelu", "bsn->bsn", 0, NULL, NULL, false},
    {"softmax", "bsN->bsN", 0, NULL, NULL, false},
    {"rmsnorm", "bsN,N->bsN", 1u << 1, NULL, NULL, false},
    {"layernorm", "bsN,N+N->bsN", 1u << 1 | 1u << 2, NULL, NULL, false},
    {"rope", "bhsD->bhsD", ALL, NULL, NULL, false},
    {"attention", "bhsD,bgSD,bgSd->bhsd", 1u << 2, NULL, NULL, true},
    {"split heads", "bsk->", ALL, NULL, NULL, true},
    {"merge heads", "bhsd->", ALL, NULL, NULL, true},
    {"select", "bSn->bn", ALL, NULL, NULL, true},
};

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

/* The rows of a block whose header has been read. */
static int pass_over_rows(reader *r)
{
    int rows = 0, c;
    for (; (c = fgetc(r->file)) == ' '; rows++)
        ck_assert(next_line(r));
    ungetc(c, r->file);
    return rows;
}

START_TEST(test_printed_table_is_the_specification)
{
    reader r = {.file = fopen(table_path, "r")};
    ck_assert_msg(r.file, "cannot read %s", table_path);
    for (int i = 0; i < DT_COUNT(blocks); i++) {
        const block *b = &blocks[i];
        const int before = r.number;
        char header[128];
        if (b->absent) {
            snprintf(header, sizeof header, "%s    %s", b->name, b->spec);
            compare_line(&r, header);
            printf("NOT compared %-22s %2d rows\n", b->name, pass_over_rows(&r));
            continue;
        }
        ck_ok(dt_rules_print(b->name, b->spec, b->linear, b->op ? b->op->infer : NULL, b->attr,
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
