/* tests/dtensor/fuzz_ops.c - the ops of random graphs: operands in letters, attributes, the call.
 * Read first: tests/dtensor/fuzz.h. */
#include "tests/dtensor/fuzz.h"

#include <stdio.h>
#include <string.h>

/* ---- random numbers ---- */

static uint64_t draw64(fuzz_random *r)
{
    uint64_t z = r->state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

int fuzz_below(fuzz_random *r, int n)
{
    return (int)(draw64(r) % (uint64_t)n);
}

bool fuzz_chance(fuzz_random *r, int percent)
{
    return fuzz_below(r, 100) < percent;
}

void fuzz_append(char *word, char letter)
{
    const size_t n = strlen(word);
    word[n] = letter;
    word[n + 1] = 0;
}

/* ---- sums of products ---- */

static void linear(fuzz_call *c)
{
    c->out[0] = dt_linear(c->tape, c->in[0], c->in[1], c->in[2]);
}

static void linear_in_out(fuzz_call *c)
{
    c->out[0] = dt_linear_in_out(c->tape, c->in[0], c->in[1], c->in[2]);
}

static void matmul(fuzz_call *c)
{
    c->out[0] = dt_matmul(c->tape, c->in[0], c->in[1]);
}

static void add(fuzz_call *c)
{
    c->out[0] = dt_add(c->tape, c->in[0], c->in[1]);
}

static void mul(fuzz_call *c)
{
    c->out[0] = dt_mul(c->tape, c->in[0], c->in[1]);
}

static void product(fuzz_call *c)
{
    c->out[0] = dt_product(c->tape, c->step->text, c->step->nin, c->in);
}

static void sum(fuzz_call *c)
{
    c->out[0] = dt_sum(c->tape, c->in[0], (uint32_t)c->step->n[0]);
}

static void draw_sum(fuzz_random *r, fuzz_step *s, const fuzz_operands *o)
{
    s->n[0] = fuzz_below(r, 1 << o->shape[0].ndim);
}

static void scale(fuzz_call *c)
{
    c->out[0] = dt_scale(c->tape, c->in[0], -0.7);
}

/* Up to three letters out of `from`, each at most once. */
static void draw_word(fuzz_random *r, const char *from, char *word)
{
    char left[16];
    int n = (int)strlen(from), length = fuzz_below(r, 4);
    memcpy(left, from, (size_t)n + 1);
    for (; length > 0 && n > 0; length--) {
        const int k = fuzz_below(r, n--);
        *word++ = left[k];
        left[k] = left[n];
    }
    *word = 0;
}

void fuzz_draw_spec(fuzz_random *r, fuzz_step *s, char *words, size_t size_bytes)
{
    char spec[sizeof s->text] = "", used[8] = "", word[8];
    *words = 0;
    const int nterms = 1 + fuzz_below(r, 2);
    for (int term = 0; term < nterms; term++) {
        const int nfactors = 1 + fuzz_below(r, 3);
        for (int f = 0; f < nfactors; f++) {
            draw_word(r, "bsnkc", word);
            for (const char *l = word; *l; l++)
                if (!strchr(used, *l))
                    fuzz_append(used, *l);
            size_t at = strlen(spec);
            (void)snprintf(spec + at, sizeof spec - at, "%s%s", f ? "," : term ? "+" : "", word);
            at = strlen(words);
            (void)snprintf(words + at, size_bytes - at, "%s ", *word ? word : ".");
        }
    }
    draw_word(r, used, word);
    (void)snprintf(s->text, sizeof s->text, "%.80s->%s", spec, word);
}

/* ---- element type and shape ---- */

static void cast(fuzz_call *c)
{
    c->out[0] = dt_cast(c->tape, c->in[0], DT_F64, c->step->n[0]);
}

static void draw_flag(fuzz_random *r, fuzz_step *s, const fuzz_operands *o)
{
    (void)o;
    s->n[0] = fuzz_below(r, 2);
}

static void rearrange(fuzz_call *c)
{
    c->out[0] = dt_rearrange(c->tape, c->in[0], c->step->op->pattern, c->step->sizes);
}

/* The dim k of the word is a group (h d): h divides it. */
static void draw_group(fuzz_random *r, fuzz_step *s, const fuzz_operands *o)
{
    const char *k = strchr(o->word[0], 'k');
    if (!k)
        return;
    const int size = (int)o->shape[0].dim[k - o->word[0]];
    int h = 1 + fuzz_below(r, size);
    while (size % h)
        h--;
    (void)snprintf(s->sizes, sizeof s->sizes, "h=%d", h);
}

/* n[0]: the dim named M, along which ops cut and join. */
static int along(fuzz_step *s, const fuzz_operands *o)
{
    s->n[0] = strchr(o->word[0], 'M') - o->word[0];
    return (int)o->shape[0].dim[s->n[0]];
}

static void split(fuzz_call *c)
{
    dt_split(c->tape, c->in[0], (int)c->step->n[0], c->step->nout, c->step->n + 1, c->out);
}

static void draw_split(fuzz_random *r, fuzz_step *s, const fuzz_operands *o)
{
    int left = along(s, o);
    s->nout = 1 + fuzz_below(r, left < 3 ? left : 3);
    for (int k = 1; k < s->nout; k++) {
        s->n[k] = 1 + fuzz_below(r, left - (s->nout - k));
        left -= (int)s->n[k];
    }
    s->n[s->nout] = left;
}

static void concat(fuzz_call *c)
{
    c->out[0] = dt_concat(c->tape, c->step->nin, c->in, (int)c->step->n[0]);
}

static void draw_concat(fuzz_random *r, fuzz_step *s, const fuzz_operands *o)
{
    (void)r;
    (void)along(s, o);
}

static void slice(fuzz_call *c)
{
    const int64_t *n = c->step->n;
    c->out[0] = dt_slice(c->tape, c->in[0], (int)n[0], n[1], n[2]);
}

static void draw_slice(fuzz_random *r, fuzz_step *s, const fuzz_operands *o)
{
    const int size = along(s, o);
    s->n[1] = fuzz_below(r, size);
    s->n[2] = s->n[1] + 1 + fuzz_below(r, size - (int)s->n[1]);
}

static void pick(fuzz_call *c)
{
    c->out[0] = dt_select(c->tape, c->in[0], (int)c->step->n[0], c->step->n[1]);
}

static void draw_pick(fuzz_random *r, fuzz_step *s, const fuzz_operands *o)
{
    s->n[1] = fuzz_below(r, along(s, o));
}

/* ---- neural network ---- */

static void embedding(fuzz_call *c)
{
    c->out[0] = dt_embedding(c->tape, c->in[0], c->in[1]);
}

static void positions(fuzz_call *c)
{
    const int s = dt_tensor_shape(c->in[0]).ndim - 2;
    c->out[0] = dt_embedding(c->tape, dt_positions(c->tape, c->in[0], s), c->in[1]);
}

/* eps is not small against the numbers, so that no case magnifies rounding. */
static void rmsnorm(fuzz_call *c)
{
    c->out[0] = dt_rmsnorm(c->tape, c->in[0], c->in[1], 0.1);
}

static void layernorm(fuzz_call *c)
{
    c->out[0] = dt_layernorm(c->tape, c->in[0], c->in[1], c->in[2], 0.1);
}

static void softmax(fuzz_call *c)
{
    c->out[0] = dt_softmax(c->tape, c->in[0]);
}

static void silu(fuzz_call *c)
{
    c->out[0] = dt_silu(c->tape, c->in[0]);
}

static void gelu(fuzz_call *c)
{
    c->out[0] = dt_gelu(c->tape, c->in[0], c->step->n[0] ? DT_GELU_ERF : DT_GELU_TANH);
}

static void swiglu(fuzz_call *c)
{
    c->out[0] = dt_swiglu(c->tape, c->in[0], c->in[1]);
}

static void rope(fuzz_call *c)
{
    c->out[0] = dt_rope(c->tape, c->in[0], c->in[1], &(dt_rope_options){.theta = 30});
}

static void attention(fuzz_call *c)
{
    c->out[0] = dt_attention(c->tape, c->in[0], c->in[1], c->in[2],
                             &(dt_attention_options){.not_causal = c->step->n[0],
                                                     .q_positions = c->in[3],
                                                     .k_positions = c->in[4],
                                                     .q_documents = c->in[5],
                                                     .k_documents = c->in[6]});
}

static void dropout(fuzz_call *c)
{
    c->out[0] = dt_dropout(c->tape, c->in[0], 0.4);
}

static void cross_entropy(fuzz_call *c)
{
    c->out[0] = dt_cross_entropy(c->tape, c->in[0], c->in[1],
                                 &(dt_cross_entropy_options){.ignore_index = 1, .valid = 3});
}

static void linear_cross_entropy(fuzz_call *c)
{
    c->out[0] = dt_linear_cross_entropy(
        c->tape, c->in[0], c->in[1], c->in[2],
        &(dt_cross_entropy_options){.ignore_index = 1, .valid = 3, .chunk = 1 + c->step->n[0]});
}

static void redistribute(fuzz_call *c)
{
    c->out[0] = dt_redistribute_to(c->tape, c->in[0], c->to);
}

static void full(fuzz_call *c)
{
    c->out[0] = dt_full(c->tape, c->in[0]);
}

/* Out to local tensors and back. */
static void local(fuzz_call *c)
{
    dt_tensor *mine = dt_scale(c->tape, dt_to_local(c->tape, c->in[0], NULL), 2.0);
    c->out[0] = dt_from_local(c->tape, mine, dt_tensor_layout(c->in[0]));
}

const fuzz_op fuzz_op_redistribute = {.name = "redistribute", .call = redistribute};
const fuzz_op fuzz_op_mul = {.name = "mul", .call = mul};
const fuzz_op fuzz_op_sum = {.name = "sum", .call = sum};
const fuzz_op fuzz_op_add = {.name = "add", .call = add};

const fuzz_op fuzz_table[] = {
    {.name = "linear", .words = "*k nk ?n", .call = linear},
    {.name = "linear_in_out", .words = "*k kn ?n", .call = linear_in_out},
    {.name = "linear_in_out", .words = "*k kcn ?cn", .call = linear_in_out},
    {.name = "linear_in_out", .words = "zk kchd ?chd", .call = linear_in_out},
    {.name = "matmul", .words = "*mk ~kn", .call = matmul},
    {.name = "add", .words = "*n ~n", .call = add},
    {.name = "mul", .words = "*n ~n", .call = mul},
    {.name = "product", .call = product},
    {.name = "sum", .words = "*n", .call = sum, .draw = draw_sum},
    {.name = "scale", .words = "*n", .call = scale},
    {.name = "cast", .words = "*n", .call = cast, .draw = draw_flag},
    {.name = "rearrange",
     .words = "bsk",
     .call = rearrange,
     .draw = draw_group,
     .pattern = "b s (h d) -> b h s d"},
    {.name = "rearrange",
     .words = "kn",
     .call = rearrange,
     .draw = draw_group,
     .pattern = "(h d) n -> d n h"},
    {.name = "rearrange",
     .words = "bhsd",
     .call = rearrange,
     .draw = draw_group,
     .pattern = "b h s d -> b s (h d)"},
    {.name = "rearrange",
     .words = "bsn",
     .call = rearrange,
     .draw = draw_group,
     .pattern = "b s n -> n (b s)"},
    {.name = "rearrange",
     .words = "nm",
     .call = rearrange,
     .draw = draw_group,
     .pattern = "n m -> m n"},
    {.name = "split", .words = "*Mn", .call = split, .draw = draw_split},
    {.name = "concat", .words = "*Mn *Nn ?*On", .call = concat, .draw = draw_concat},
    {.name = "slice", .words = "*M", .call = slice, .draw = draw_slice},
    {.name = "select", .words = "*Mn", .call = pick, .draw = draw_pick},
    {.name = "embedding", .words = "#* vd", .call = embedding},
    {.name = "positions", .words = "*sn pd", .call = positions},
    {.name = "rmsnorm", .words = "!*N ?N", .call = rmsnorm},
    {.name = "layernorm", .words = "!*N N ?N", .call = layernorm},
    {.name = "softmax", .words = "!*N", .call = softmax},
    {.name = "silu", .words = "!*n", .call = silu},
    {.name = "gelu", .words = "!*n", .call = gelu, .draw = draw_flag},
    {.name = "swiglu", .words = "!*n *n", .call = swiglu},
    {.name = "rope", .words = "bhsE ?#s", .call = rope},
    {.name = "rope", .words = "bhsE #bs", .call = rope},
    {.name = "attention", .words = "!bhsD !bgTD bgTe", .call = attention, .draw = draw_flag},
    {.name = "attention",
     .words = "!bhsD !bgTD bgTe #s #T #bs #bT",
     .call = attention,
     .draw = draw_flag},
    {.name = "dropout", .words = "*n", .call = dropout},
    {.name = "cross_entropy", .words = "!*v #*", .call = cross_entropy, .split_vocabulary = true},
    {.name = "linear_cross_entropy",
     .words = "!*k !vk #*",
     .call = linear_cross_entropy,
     .draw = draw_flag,
     .split_vocabulary = true},
    {.name = "full", .words = "*n", .call = full},
    {.name = "to and from local", .words = "*n", .call = local},
};

const int fuzz_table_rows = DT_COUNT(fuzz_table);
