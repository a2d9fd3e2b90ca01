/* tests/base/test_options.c - the option table: order of precedence, every type, every kind of
 * mistake, and printing that reads back. */
#include "base/dt_json.h"
#include "base/dt_options.h"
#include "tests/harness.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const dt_option table[] = {
    {"data.path", DT_OPTION_STRING, NULL, "the data", NULL, 0, 0},
    {"train.steps", DT_OPTION_INT, "100", "steps to take", NULL, 1, INFINITY},
    {"train.seq_len", DT_OPTION_INT, "256", "tokens of a sample", NULL, 0, 0},
    {"train.part.ratio", DT_OPTION_FLOAT, "0.5", "a share", NULL, 0, 1},
    {"optim.lr", DT_OPTION_FLOAT, "1e-3", "learning rate", NULL, 0, 0},
    {"parallel.sp", DT_OPTION_BOOL, "false", "sequence parallel", NULL, 0, 0},
    {"parallel.loss", DT_OPTION_BOOL, NULL, "loss parallel [true when tp > 1]", NULL, 0, 0},
    {"recompute", DT_OPTION_STRING, "none", "what to recompute", "none|full|selective", 0, 0},
    {"bucket", DT_OPTION_SIZE, "4M", "bytes of a bucket", NULL, 0, 0},
    {"help", DT_OPTION_COMMAND, NULL, "print this", NULL, 0, 0},
};

enum { MOST = 16 };
static char config[] = "/tmp/dt_options_XXXXXX";

static void write_config(const char *text)
{
    FILE *f = fopen(config, "w");
    ck_assert_ptr_nonnull(f);
    ck_assert_int_ge(fputs(text, f), 0);
    ck_assert_int_eq(fclose(f), 0);
}

/* Parse arguments; `args` ends with NULL. */
static dt_status parse(const char *const *args, dt_options **options_out)
{
    const char *argv[MOST] = {"prog"};
    int argc = 1;
    for (; args[argc - 1]; argc++)
        argv[argc] = args[argc - 1];
    return dt_options_parse(table, DT_COUNT(table), argc, argv, options_out);
}

#define ARGS(...) ((const char *const[]){__VA_ARGS__, NULL})

static void fails(const char *const *args, const char *text)
{
    dt_options *o = NULL;
    ck_ok(test_expect(parse(args, &o), DT_ERR_ARG, text, args[0]));
    ck_assert_ptr_null(o);
}

static void file_fails(const char *text, const char *message)
{
    write_config(text);
    fails(ARGS(config), message);
}

START_TEST(defaults)
{
    dt_options *o;
    ck_ok(parse((const char *const[]){NULL}, &o));
    ck_assert_int_eq(dt_options_int(o, "train.steps"), 100);
    ck_assert(dt_options_float(o, "optim.lr") == 1e-3);
    ck_assert(!dt_options_bool(o, "parallel.sp") && !dt_options_bool(o, "help"));
    ck_assert_str_eq(dt_options_string(o, "recompute"), "none");
    ck_assert_int_eq(dt_options_size(o, "bucket"), 4 << 20);
    ck_assert_ptr_null(dt_options_string(o, "data.path"));
    ck_assert(!dt_options_has(o, "data.path") && !dt_options_has(o, "parallel.loss"));
    ck_assert(dt_options_has(o, "bucket") && !dt_options_is_set(o, "bucket"));
    dt_options_destroy(&o);
    ck_assert_ptr_null(o);
    dt_options_destroy(&o);
}
END_TEST

START_TEST(command_line_forms)
{
    dt_options *o;
    ck_ok(parse(ARGS("--train.steps=7", "--optim.lr", "-2.5e-1", "--parallel.sp", "--data.path=a=b",
                     "--recompute", "FULL", "--bucket=2GiB", "--train.steps=8", "--help",
                     "--parallel.loss", "false"),
                &o));
    ck_assert_int_eq(dt_options_int(o, "train.steps"), 8); /* the last one */
    ck_assert(dt_options_float(o, "optim.lr") == -0.25);
    ck_assert(dt_options_bool(o, "parallel.sp") && dt_options_bool(o, "help"));
    ck_assert_str_eq(dt_options_string(o, "data.path"), "a=b");
    ck_assert_str_eq(dt_options_string(o, "recompute"), "full"); /* as in the table */
    ck_assert_int_eq(dt_options_size(o, "bucket"), 2147483648);
    ck_assert(dt_options_has(o, "parallel.loss") && !dt_options_bool(o, "parallel.loss"));
    ck_assert(dt_options_is_set(o, "train.steps") && !dt_options_is_set(o, "train.seq_len"));
    dt_options_destroy(&o);
}
END_TEST

START_TEST(sizes)
{
    static const struct {
        const char *text;
        int64_t bytes;
    } legal[] = {{"0", 0},        {"12", 12},          {"12B", 12},       {"3K", 3072},
                 {"3KiB", 3072},  {"3KB", 3000},       {"1M", 1 << 20},   {"1MB", 1000000},
                 {"1G", 1 << 30}, {"2GB", 2000000000}, {"1T", 1ll << 40}, {"1TB", 1000000000000}};
    for (int i = 0; i < DT_COUNT(legal); i++) {
        dt_options *o;
        ck_ok(parse(ARGS("--bucket", legal[i].text), &o));
        ck_assert_int_eq(dt_options_size(o, "bucket"), legal[i].bytes);
        dt_options_destroy(&o);
    }
    const char *bad[] = {"", "K", "-1", "1X", "1KBB", "1iB", "9999999T", "1.5G"};
    for (int i = 0; i < DT_COUNT(bad); i++)
        fails(ARGS("--bucket", bad[i]), "must be a number of bytes such as");
}
END_TEST

START_TEST(file_and_precedence)
{
    write_config(
        "{\"train\": {\"steps\": 5, \"seq_len\": 64, \"part\": {\"ratio\": 1}},\n"
        " \"optim.lr\": 0.25, \"parallel\": {\"sp\": true, \"loss\": null}, \"bucket\": \"1K\",\n"
        " \"data\": {\"path\": \"x\"}}");
    for (int order = 0; order < 2; order++) {
        dt_options *o;
        ck_ok(parse(order ? ARGS("--train.steps=6", config) : ARGS(config, "--train.steps=6"), &o));
        ck_assert_int_eq(dt_options_int(o, "train.steps"), 6);
        ck_assert_int_eq(dt_options_int(o, "train.seq_len"), 64);
        ck_assert(dt_options_float(o, "train.part.ratio") == 1 &&
                  dt_options_bool(o, "parallel.sp"));
        ck_assert(dt_options_float(o, "optim.lr") == 0.25);
        ck_assert(dt_options_size(o, "bucket") == 1024 && dt_options_is_set(o, "bucket"));
        ck_assert_str_eq(dt_options_string(o, "data.path"), "x");
        ck_assert(!dt_options_is_set(o, "parallel.loss"));
        dt_options_destroy(&o);
    }
}
END_TEST

START_TEST(command_line_mistakes)
{
    fails(ARGS("--train.step=3"), "unknown key 'train.step'; the nearest is 'train.steps'");
    fails(ARGS("--parallel.s=1"), "the nearest is 'parallel.sp'");
    fails(ARGS("--train.part=1"), "the nearest is 'train.part.ratio'");
    fails(ARGS("--lr=3"), "the nearest is 'optim.lr'");
    fails(ARGS("--seqlen=3"), "the nearest is 'train.seq_len'");
    fails(ARGS("--train.steps=many"), "train.steps: 'many' is not legal, must be an integer");
    fails(ARGS("--train.steps=1.5"), "must be an integer");
    fails(ARGS("--train.steps=99999999999999999999"), "must be an integer");
    fails(ARGS("--train.steps="), "must be an integer");
    fails(ARGS("--train.steps=0"), "train.steps: 0 is too small, must be at least 1");
    fails(ARGS("--train.part.ratio=1.5"), "1.5 is out of range, must be from 0 to 1");
    fails(ARGS("--optim.lr=nan"), "optim.lr: 'nan' is not legal, must be a number");
    fails(ARGS("--optim.lr=1e999"), "must be a number");
    fails(ARGS("--optim.lr=1x"), "must be a number");
    fails(ARGS("--parallel.sp=maybe"), "parallel.sp: 'maybe' is not legal, must be true or false");
    fails(ARGS("--recompute=all"),
          "recompute: 'all' is not legal, must be one of none|full|selective");
    fails(ARGS("--recompute=ful"), "must be one of");
    fails(ARGS("--recompute="), "must be one of");
    fails(ARGS("--train.steps"), "--train.steps needs a value");
    fails(ARGS("--train.steps", "--help"), "--train.steps needs a value");
    fails(ARGS("--help=yes"), "--help takes no value");
    fails(ARGS("-h"), "'-h': options start with --");
    write_config("{}");
    fails(ARGS(config, "other.json"), "two configuration files");
    dt_options *o;
    ck_ok(test_expect(parse(ARGS("/nowhere.json"), &o), DT_ERR_IO, "/nowhere.json", ""));
}
END_TEST

START_TEST(file_mistakes)
{
    file_fails("{\"train\": {\"stps\": 3}}",
               "unknown key 'train.stps'; the nearest is 'train.steps'");
    file_fails("{\"model_type\": \"llama\", \"vocab_size\": 256}",
               "this is a model's config.json, not a configuration of this program; pass it as "
               "--model.config=/tmp/");
    file_fails("{\"train\": 3}", "unknown key 'train'");
    file_fails("{\"trian\": {\"steps\": null}}", "unknown key 'trian.steps'");
    file_fails("{\"help\": true}", "unknown key 'help'");
    file_fails("{\"train\": {\"steps\": \"3\"}}", "'train.steps' is \"3\", must be a number");
    file_fails("{\"train\": {\"steps\": 3.5}}", "must be an integer");
    file_fails("{\"train\": {\"steps\": true}}", "must be a number");
    file_fails("{\"train\": {\"steps\": [3]}}", "'train.steps' is [3], must be a number");
    file_fails("{\"train\": {\"steps\": 0}}", "must be at least 1");
    file_fails("{\"parallel\": {\"sp\": 1}}", "must be true or false");
    file_fails("{\"data\": {\"path\": 1}}", "must be a text in quotes");
    file_fails("{\"recompute\": \"most\"}", "must be one of none|full|selective");
    file_fails("{\"train\": {\"steps\": 3}, \"train.steps\": 4}", "is given twice");
    write_config("{\"train\": {\"steps\": \"3\"}}"); /* also where the command line would win */
    fails(ARGS(config, "--train.steps=1"), "must be a number");
    dt_options *o;
    write_config("{\"bucket\": 1,\n \"bucket\": 2}");
    ck_ok(test_expect(parse(ARGS(config), &o), DT_ERR_FORMAT, "duplicate object key", ""));
}
END_TEST

/* What was printed to a temporary file, as text; free it. Closes the file. */
static char *text_of(FILE *out)
{
    const long size = ftell(out);
    char *text = calloc(1, (size_t)size + 1);
    ck_assert_ptr_nonnull(text);
    rewind(out);
    ck_assert_uint_eq(fread(text, 1, (size_t)size, out), (size_t)size);
    (void)fclose(out);
    return text;
}

START_TEST(printed_config_reads_back)
{
    dt_options *o, *again;
    ck_ok(parse(ARGS("--optim.lr=0.1", "--train.part.ratio=0.30000000000000004", "--data.path=q\"q",
                     "--bucket=1MB", "--train.steps=9007199254740993", "--help"),
                &o));
    FILE *out = tmpfile();
    ck_assert_ptr_nonnull(out);
    ck_ok(dt_options_print_config(o, out));
    char *text = text_of(out);
    write_config(text);
    json_t *root;
    ck_ok(dt_json_load(config, &root));
    ck_assert_ptr_null(json_object_get(root, "help"));
    ck_assert_ptr_null(json_object_get(json_object_get(root, "parallel"), "loss"));
    ck_assert_int_eq(json_integer_value(json_object_get(json_object_get(root, "train"), "seq_len")),
                     256);
    json_decref(root);
    ck_ok(parse(ARGS(config), &again));
    for (int i = 0; i < DT_COUNT(table) - 1; i++) /* all but help */
        ck_assert_int_eq(dt_options_has(o, table[i].key), dt_options_has(again, table[i].key));
    ck_assert(dt_options_float(again, "train.part.ratio") == 0.30000000000000004);
    ck_assert(dt_options_float(again, "optim.lr") == 0.1);
    ck_assert_str_eq(dt_options_string(again, "data.path"), "q\"q");
    ck_assert_int_eq(dt_options_size(again, "bucket"), 1000000);
    ck_assert_int_eq(dt_options_int(again, "train.steps"), 9007199254740993);
    free(text);
    dt_options_destroy(&o);
    dt_options_destroy(&again);

    ck_ok(parse(ARGS("--optim.lr=0.1"), &o));
    out = tmpfile();
    ck_assert_ptr_nonnull(out);
    ck_ok(dt_options_print_config(o, out));
    text = text_of(out);
    ck_assert_ptr_nonnull(strstr(text, "\"lr\": 0.1\n")); /* short where that is exact */
    free(text);
    FILE *full = fopen("/dev/full", "w");
    ck_assert_ptr_nonnull(full);
    (void)setvbuf(full, NULL, _IONBF, 0);
    ck_ok(test_expect(dt_options_print_config(o, full), DT_ERR_IO, "", ""));
    (void)fclose(full);
    dt_options_destroy(&o);
}
END_TEST

START_TEST(help_lists_every_key_in_its_group)
{
    FILE *out = tmpfile();
    ck_assert_ptr_nonnull(out);
    dt_options_print_help(table, DT_COUNT(table), "prog FOLDER [--key=value]", out);
    char *text = text_of(out);
    const char *at = text;
    for (int i = 0; i < DT_COUNT(table); i++) {
        char line[64];
        (void)snprintf(line, sizeof line, "\n  --%s", table[i].key);
        at = strstr(at, line); /* in the table's order */
        ck_assert_msg(at, "%s is missing", table[i].key);
        ck_assert_ptr_nonnull(strstr(at, table[i].help));
    }
    ck_assert_ptr_eq(strstr(text, "usage: prog FOLDER [--key=value]\n"), text);
    ck_assert_ptr_nonnull(strstr(text, "\n\ntrain\n  --train.steps=INTEGER"));
    ck_assert_ptr_nonnull(strstr(text, "\n\ngeneral\n  --recompute=none|full|selective"));
    ck_assert_ptr_nonnull(strstr(text, "steps to take [100]\n"));
    free(text);
}
END_TEST

START_TEST(help_has_one_general_group_and_escapes)
{
    static const dt_option some[] = {
        {"first", DT_OPTION_STRING, "a\n", "text", NULL, 0, 0},
        {"group.key", DT_OPTION_INT, "1", "number", NULL, 0, 0},
        {"last", DT_OPTION_COMMAND, NULL, "do it", NULL, 0, 0},
    };
    FILE *out = tmpfile();
    ck_assert_ptr_nonnull(out);
    dt_options_print_help(some, DT_COUNT(some), "prog [CONFIG.json]", out);
    char *text = text_of(out);
    ck_assert_str_eq(text,
                     "usage: prog [CONFIG.json]\n"
                     "Dots in a key are nested objects in CONFIG.json. [defaults in brackets]\n"
                     "\ngroup\n"
                     "  --group.key=INTEGER                   number [1]\n"
                     "\ngeneral\n"
                     "  --first=TEXT                          text [a\\n]\n"
                     "  --last                                do it\n");
    free(text);
}
END_TEST

int main(void)
{
    if (close(mkstemp(config)) != 0)
        return EXIT_FAILURE;
    Suite *suite = suite_create("options");
    TCase *tests = tcase_create("options");
    tcase_add_test(tests, defaults);
    tcase_add_test(tests, command_line_forms);
    tcase_add_test(tests, sizes);
    tcase_add_test(tests, file_and_precedence);
    tcase_add_test(tests, command_line_mistakes);
    tcase_add_test(tests, file_mistakes);
    tcase_add_test(tests, printed_config_reads_back);
    tcase_add_test(tests, help_has_one_general_group_and_escapes);
    tcase_add_test(tests, help_lists_every_key_in_its_group);
    suite_add_tcase(suite, tests);
    const int result = test_main(suite);
    (void)unlink(config);
    return result;
}
