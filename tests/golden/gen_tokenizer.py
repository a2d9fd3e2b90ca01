#!/usr/bin/env python3
# tests/golden/gen_tokenizer.py - makes tests/golden/tokenizer/: two small byte-level BPE tokenizers and what the
# `tokenizers` package (0.23.3) makes of many texts with them. Not needed to build or test.
#
#     python3 tests/golden/gen_tokenizer.py TEXT...       TEXT: plain text to learn merges from
import json
import os
import random
import sys

from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers, decoders, trainers

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tokenizer")
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")

LANGUAGES = [
    "The quick river doesn't wait; we've seen it's wide, and they'll cross at 7:45 or 1999.",
    "Der Fluss fließt schneller, als wir dachten; übermorgen überqueren wir ihn für 12,50 €.",
    "La rivière n'attend personne : nous l'avons traversée à l'aube, déjà fatigués.",
    "El río no espera; mañana iremos más allá del puente, ¿verdad? ¡Sí, señor!",
    "Rzeka płynie szybko, żółte liście wirują, a źdźbła trawy schną na brzegu.",
    "Река не ждёт: завтра мы перейдём её вброд, если дождь закончится к 8 утра.",
    "Το ποτάμι δεν περιμένει· αύριο θα το περάσουμε, αν σταματήσει η βροχή.",
    "Nehir beklemez; İstanbul'da ılık bir ağustos akşamı, güneş batıyordu.",
    "النهر لا ينتظر أحدا، وغدا سنعبره عند الفجر إذا توقف المطر ١٢٣٤.",
    "הנהר אינו מחכה לאיש; מחר נחצה אותו עם שחר.",
    "नदी किसी का इंतज़ार नहीं करती; कल सुबह हम उसे पार करेंगे १२३।",
    "แม่น้ำไม่รอใคร พรุ่งนี้เช้าเราจะข้ามไปอีกฝั่ง",
    "川は誰も待たない。明日の朝、私たちは橋を渡ります。カタカナもある。",
    "河流不等人，明天早上我们过桥，共有３５６人。",
    "강은 누구도 기다리지 않는다. 내일 아침 우리는 다리를 건넌다.",
    "Sông không đợi ai; sáng mai chúng ta sẽ qua cầu, nếu trời tạnh mưa.",
    "if (x[i] != y->z) {\n\treturn a + b * 3.14159e-10;   // no\n}\n",
    "👩‍👩‍👧‍👦 🏳️‍🌈 naïve café e\u0301 ﬁne ½ Ⅻ ²³ 𝔘𝔫𝔦 \U0001F9EA",
]
EDGES = [
    "", " ", "  ", "   a", "a   ", "a  b", "\n", "\n\n\n", "a\n b", "a \n b", " \n ", "\r\n", "a\r\n\r\nb", "\t\tx", "x\t",
    "don't DON'T Don'T we'Re I'M 'S's'ss'", "it’s ‘s", "'ſ 'ﬅ x'\u212a", "\u00a0x\u00a0\u00a0y", "a\u0085b", "a\u180eb",
    "\u2003\u2003z", "\u3000全角\u3000", "a\u200bb\u200dc", "\ufeffbom", "a\u2028b\u2029c", "\x01\x7f", "\x0b\x0c\x1c\x1d\x1e\x1f ",
    "1", "12", "123", "1234", "1234567890123", "٣٤٥٦ ४५६७", "x2y33z", "²³¹", "ⅣⅤ", "1,234.56", "...", "!!!???", "a.b", " .", " ..\n\n",
    "--------------------------------", "=" * 100, "a" * 300, " " * 200, "ab" * 150, "\n" * 50 + "x", "é" * 40, "日本" * 30,
    "<|endoftext|>", "a<|endoftext|>b", "<|endoftext|><|endoftext|>", " <|endoftext|> ", "<|end", "<|endoftext|", "<|begin|>hi<|end|>",
    "<|begin|><|beginning|>", "a<|end|>>b<|end|>c", "<extra>word</extra>", "the <late> river", "x   \u180ey  \u180e", "zebra crossing zebra", " zebra", "xylophone", "\U0010ffff\U00020000", "\ue000",
]


def texts():
    r = random.Random(20240501)
    pool = [" ", " ", "\n", "\r", "\t", "'", "s", "t", "re", "LL", "A", "b", "ß", "é", "e\u0301", "я", "Ж", "ب", "ة", "א", "क", "ि",
            "ไ", "้", "漢", "字", "か", "ー", "한", "0", "7", "٤", "½", "Ⅷ", ".", ",", "-", "_", "(", "\"", "€", "😀", "\u200d", "🏽",
            "\u00a0", "\u3000", "\u2009", "\u0085", "\u1680", "ǅ", "ʰ", "ꙮ", "𐐷", "\U0001F1E9", "<|endoftext|>", "<extra>", "the", " of"]
    mixed = ["".join(r.choice(pool) for _ in range(r.randrange(1, 30))) for _ in range(300)]
    return LANGUAGES + EDGES + ["".join(r.sample(LANGUAGES, 3)) for _ in range(10)] + mixed


def train(name, pre, special, vocab, files):
    t = Tokenizer(models.BPE(ignore_merges=name == "llama3"))
    t.pre_tokenizer, t.decoder = pre, decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocab, special_tokens=special, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    lines = [line for f in files for line in open(f, encoding="utf-8", errors="ignore")]
    t.train_from_iterator(lines + LANGUAGES * 40, trainer)
    j = json.loads(t.to_str())
    if name == "gpt2":  # the older way to write merges
        j["model"]["merges"] = [" ".join(m) for m in j["model"]["merges"]]
    else:  # words that no merges make, which ignore_merges finds; and a token that is not special
        for word in ["Ġzebra", "xylophone"]:
            j["model"]["vocab"].setdefault(word, max(j["model"]["vocab"].values()) + 1)
    t = Tokenizer.from_str(json.dumps(j))
    if name == "llama3":
        t.add_tokens([AddedToken("<extra>", normalized=True), AddedToken("</extra>", normalized=False),
                      AddedToken("<late>", normalized=True), AddedToken("<la", normalized=False)])
    j2 = json.loads(t.to_str())
    j2["model"]["merges"] = j["model"]["merges"]
    with open(os.path.join(HERE, name + ".json"), "w", encoding="utf-8") as f:
        json.dump(j2, f, ensure_ascii=False, separators=(",", ":"))
    return Tokenizer.from_file(os.path.join(HERE, name + ".json"))


os.makedirs(HERE, exist_ok=True)
gpt2 = train("gpt2", pre_tokenizers.ByteLevel(add_prefix_space=False), ["<|endoftext|>"], 900, sys.argv[1:])
llama3 = train("llama3", pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(LLAMA3), "isolated"),
                                                   pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]),
               ["<|endoftext|>", "<|begin|>", "<|beginning|>", "<|end|>", "<|end|>>"], 1000, sys.argv[1:])
with open(os.path.join(HERE, "cases.json"), "w", encoding="ascii") as f:
    cases = [{"text": t, "gpt2": gpt2.encode(t, add_special_tokens=False).ids,
              "llama3": llama3.encode(t, add_special_tokens=False).ids} for t in texts()]
    f.write("{\"cases\":[\n" + ",\n".join(json.dumps(c, separators=(",", ":")) for c in cases) + "\n]}\n")
