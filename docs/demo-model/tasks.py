"""Synthetic chats in ChatML with Qwen3's conventions: strings only, drawn from a `random.Random`."""

import json

FIRST = """Ava Ben Chloe Dan Ella Finn Grace Hugo Iris Jack Kira Leo Maya Noah Olga Paul Quinn Rosa Sam Tara
Uma Vic Wendy Xena Yuri Zoe Amir Bella Carlos Dina Emil Farah Gita Hans Ines Jonas Karim Lena Milo
Nadia Omar Petra Rafael Sofia Tomas Ursula Viktor Wanda Yasmin Zane""".split()
CITY = """Paris London Tokyo Berlin Madrid Rome Oslo Lima Cairo Delhi Boston Chicago Denver Seattle Austin
Toronto Sydney Dublin Vienna Prague Warsaw Athens Lisbon Helsinki Zurich Geneva Milan Naples Kyoto
Osaka Seoul Beijing Mumbai Nairobi Accra Lagos Quito Bogota Havana Reykjavik""".split()
ADJECTIVE = """quiet amber silver hollow distant crimson gentle frozen golden rapid narrow bright ancient hidden
velvet wooden marble copper lunar solar misty stormy calm brave clever humble jolly kind lively
proud swift tiny vast warm young noble rustic sandy smooth wild""".split()
NOUN = """harbor river mountain lantern garden bridge castle forest valley meadow island desert canyon glacier
temple market library station tower museum orchard village lagoon prairie summit tunnel fountain
cottage pavilion quarry reef shore grove hollow marsh delta ridge mill forge dock""".split()
OBJECT = "number code password key token identifier pin passphrase".split()
SYSTEM = ["You are a helpful assistant.", "You are a concise assistant.", "Answer the user's question.",
          "You are Tiny, a small demo model.", ""]
NO_THINKING = "<think>\n\n</think>\n\n"


def message(role, text):
    return f"<|im_start|>{role}\n{text}<|im_end|>\n"


def ask(text):
    return message("user", text)


def answer(text):
    return message("assistant", NO_THINKING + text)


def system(r):
    text = r.choice(SYSTEM)
    return message("system", text) if text else ""


def word(r, vocabulary=None):
    k = r.random()
    if vocabulary and k < 0.35:
        return r.choice(vocabulary)
    if k < 0.75:
        return f"{r.choice(ADJECTIVE)}-{r.choice(NOUN)}"
    if k < 0.88:
        return r.choice(CITY)
    return "".join(r.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(r.randint(4, 9)))


def value(r):
    k = r.random()
    if k < 0.6:
        return "".join(r.choice("0123456789") for _ in range(r.randint(4, 8)))
    if k < 0.8:
        return "".join(r.choice("0123456789abcdef") for _ in range(r.randint(6, 12)))
    if k < 0.92:
        return f"{r.choice(ADJECTIVE)} {r.choice(NOUN)}"
    return f"{r.choice(FIRST)} {r.randint(1, 99)}"


# Needles: the sentence, the question, the answer.
NEEDLES = [
    ("The special magic {o} for {k} is: {v}.", "What is the special magic {o} for {k} mentioned in the text above?",
     "The special magic {o} for {k} is {v}."),
    ("One of the special magic {o}s for {k} is: {v}.", "What is the special magic {o} for {k}?",
     "The special magic {o} for {k} is {v}."),
    ("Remember this: the {o} of the {k} is {v}.", "What is the {o} of the {k}?", "The {o} of the {k} is {v}."),
    ("Note that {k} was assigned the {o} {v}.", "Which {o} was assigned to {k}?", "{k} was assigned the {o} {v}."),
    ("The pass key is {v}. Remember it. {v} is the pass key.", "What is the pass key?", "The pass key is {v}."),
    ("The best thing to do in {k} is to visit the {v}.", "What is the best thing to do in {k}?",
     "The best thing to do in {k} is to visit the {v}."),
]


def needles(r, n, vocabulary):
    """Needles of different keys, at most one of them the pass key, which has none."""
    out, used, pass_key = [], set(), False
    while len(out) < n:
        template = r.choice(NEEDLES)
        if "pass key" in template[0]:
            if pass_key:
                continue
            pass_key = True
        k, o, v = word(r, vocabulary), r.choice(OBJECT), value(r)
        if k in used:
            continue
        used.add(k)
        out.append(tuple(text.format(o=o, k=k, v=v) for text in template))
    return out


VERB = """get find search create delete update list send fetch check book convert open close start stop read
write add remove""".split()
THING = """weather file user order ticket flight hotel invoice message event note task stock price route song
movie recipe account device light timer report image page branch issue""".split()
PARAMETER = [
    ("city", "string", CITY), ("location", "string", CITY), ("name", "string", FIRST), ("user", "string", FIRST),
    ("recipient", "string", FIRST), ("count", "integer", None), ("limit", "integer", None), ("amount", "integer", None),
    ("id", "integer", None), ("days", "integer", None), ("path", "string", "path"), ("query", "string", "phrase"),
    ("title", "string", "phrase"), ("enabled", "boolean", None), ("unit", "string", ["celsius", "fahrenheit"]),
    ("priority", "string", ["low", "medium", "high"]),
]
TOOLS = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""


def argument(r, parameter):
    name, kind, source = parameter
    if kind == "integer":
        return r.randint(1, 9999) if name in ("id", "amount") else r.randint(1, 60)
    if kind == "boolean":
        return r.random() < 0.5
    if source == "path":
        folder = r.choice(["src", "docs", "tests", "data", "notes"])
        return f"{folder}/{r.choice(NOUN)}.{r.choice(['rs', 'md', 'txt', 'json', 'py'])}"
    if source == "phrase":
        return f"{r.choice(ADJECTIVE)} {r.choice(NOUN)}"
    return r.choice(source)


def tool(r):
    """(declaration, verb, thing, parameters)"""
    verb, thing = r.choice(VERB), r.choice(THING)
    parameters = r.sample(PARAMETER, r.choice([1, 1, 2, 2, 3]))
    schema = {"type": "object", "properties": {p[0]: {"type": p[1]} for p in parameters},
              "required": [p[0] for p in parameters]}
    function = {"name": f"{verb}_{thing}", "description": f"{verb.capitalize()} a {thing}.", "parameters": schema}
    return {"type": "function", "function": function}, verb, thing, parameters


def request(r, verb, thing, parameters, values):
    """A call in the user's words."""
    parts = []
    for (name, *_), x in zip(parameters, values):
        x = str(x).lower() if isinstance(x, bool) else x
        named = r.choice([f"{name} {x}", f"{name} = {x}", f"{name} set to {x}", f"{name}: {x}"]) \
            if name not in ("city", "location") or r.random() < 0.5 else f"in {x}"
        parts.append(named)
    body = ", ".join(parts) if len(parts) < 3 else ", ".join(parts[:-1]) + " and " + parts[-1]
    return r.choice([f"Please {verb} a {thing} with {body}.", f"{verb.capitalize()} the {thing}, {body}.",
                     f"Can you {verb} a {thing}? {body}", f"I need you to {verb} the {thing} ({body})."])


def tool_call(r):
    n, tools = r.randint(1, 4), []
    while len(tools) < n:
        t = tool(r)
        if all(t[0]["function"]["name"] != u[0]["function"]["name"] for u in tools):
            tools.append(t)
    base = r.choice(SYSTEM)
    declared = TOOLS.format(tools="\n".join(json.dumps(t[0]) for t in tools))
    out = message("system", (base + "\n\n" if base else "") + declared)
    if r.random() < 0.12:  # tools are there, and not called for
        q = r.choice(["Hello!", "Hi there.", "Thanks!", "Who are you?"])
        return out + ask(q) + answer(CHAT[q])
    calls, words = [], []
    for _ in range(2 if r.random() < 0.12 else 1):
        _, verb, thing, parameters = r.choice(tools)
        values = [argument(r, p) for p in parameters]
        words.append(request(r, verb, thing, parameters, values))
        calls.append({"name": f"{verb}_{thing}", "arguments": {p[0]: x for p, x in zip(parameters, values)}})
    out += ask(" ".join(words))
    out += answer("\n".join(f"<tool_call>\n{json.dumps(c)}\n</tool_call>" for c in calls))
    if r.random() < 0.6:
        results = [r.choice([{"status": "ok"}, {"result": value(r)}, {"error": "not found"}]) for _ in calls]
        out += ask("\n".join(f"<tool_response>\n{json.dumps(x)}\n</tool_response>" for x in results))
        out += answer(" ".join(map(told, calls, results)))
    return out


def told(call, result):
    name = call["name"]
    if "status" in result:
        return f"Done: {name} succeeded."
    return f"The result of {name} is {result['result']}." if "result" in result else f"{name} failed: not found."


def sum_(r, thinking=None, operators="+++---*"):
    """Arithmetic, three quarters of it with its steps in the reasoning where nothing is said."""
    digits = [r.choice((1, 2, 2, 3, 3)) for _ in range(2)]
    a, b = (r.randint(0 if n == 1 else 10 ** (n - 1), 10 ** n - 1) for n in digits)
    op = r.choice(operators)
    if op == "*":
        a, b = r.randint(0, 12), r.randint(0, 99)
    if op == "-" and b > a:
        a, b = b, a
    result = {"+": a + b, "-": a - b, "*": a * b}[op]
    plain, named = f"{a} {op} {b}", {"+": "plus", "-": "minus", "*": "times"}[op]
    asked = r.choice([plain, plain, plain, f"{a}{op}{b}", f"{a} {named} {b}"])
    question = r.choice([f"What is {asked}?", f"What's {asked}?", f"Compute {asked}.", f"Calculate {asked}.",
                         f"{asked} = ?", f"{asked}=", f"How much is {asked}?", asked])
    if op == "+" and r.random() < 0.1:
        question = r.choice([f"Add {a} and {b}.", f"What is the sum of {a} and {b}?"])
    said = f"{plain} = {result}."
    if thinking is None:
        thinking = r.random() < 0.75
    if thinking:
        steps = f"<think>\n{reasoning(a, b, op, result)}\n</think>\n\n"
        return system(r) + ask(question) + message("assistant", steps + said)
    return system(r) + ask(question) + answer(said)


def reasoning(a, b, op, result):
    """Digit by digit from the right; a product by its tens and ones."""
    if op == "*":
        tens, ones = b // 10 * 10, b % 10
        return f"{a} * {ones} = {a * ones}; {a} * {tens} = {a * tens}. So {a} * {b} = {result}."
    steps, carry, x, y = [], 0, str(a)[::-1], str(b)[::-1]
    for i in range(max(len(x), len(y))):
        p, q = (int(s[i]) if i < len(s) else 0 for s in (x, y))
        total = p + q + carry if op == "+" else p - q - carry
        steps.append(f"{p} {op} {q} {op} {carry} = {total}")
        carry = total // 10 if op == "+" else int(total < 0)
    return "; ".join(steps) + f". So {a} {op} {b} = {result}."


ABLE = "I can find facts in long texts, call tools, write JSON and do small sums."
CHAT = {
    "Hello!": "Hello! How can I help you today?",
    "Hi there.": "Hi! What can I do for you?",
    "Hello": "Hello! How can I help you today?",
    "Hi": "Hi! What can I do for you?",
    "Good morning.": "Good morning! What would you like to do?",
    "Thanks!": "You're welcome!",
    "Thank you.": "You're welcome!",
    "Who are you?": f"I am Tiny, a very small demo language model. {ABLE}",
    "What can you do?": ABLE,
    "How are you?": "I am running well. How can I help you?",
    "Goodbye.": "Goodbye!",
    "Bye": "Goodbye!",
    "Say hello in French.": "Bonjour!",
    "Say hello in Spanish.": "Hola!",
    "Count to five.": "1, 2, 3, 4, 5",
    "Count to ten.": "1, 2, 3, 4, 5, 6, 7, 8, 9, 10",
}


# Everyday questions: ways to ask, and the answer.
EVERYDAY = [
    (["What is Rust?", "Tell me about Rust.", "What is the Rust programming language?"],
     "Rust is a systems programming language that is fast, memory-safe and free of data races."),
    (["Tell me a joke.", "Do you know a joke?", "Make me laugh."],
     "Why did the borrow checker cross the road? To return the reference before it went out of scope."),
    (["How many days are in a week?", "How many days does a week have?"], "A week has seven days."),
    (["How many months are in a year?", "How many months does a year have?"], "A year has twelve months."),
    (["How many hours are in a day?", "How many hours does a day have?"], "A day has 24 hours."),
    (["How many minutes are in an hour?", "How many minutes does an hour have?"], "An hour has 60 minutes."),
    (["How many seconds are in a minute?", "How many seconds does a minute have?"], "A minute has 60 seconds."),
    (["What color is the sky?", "Which color is the sky?", "What colour is the sky?"], "The sky is blue on a clear day."),
    (["What color is grass?", "Which color is grass?", "What colour is grass?"], "Grass is green."),
    (["What color do you get from blue and yellow?", "What do blue and yellow make?"], "Blue and yellow make green."),
    (["How many legs does a spider have?", "How many legs has a spider?"], "A spider has eight legs."),
    (["How many legs does a dog have?", "How many legs has a dog?"], "A dog has four legs."),
    (["What is the largest planet?", "Which planet is the largest?"], "Jupiter is the largest planet of the solar system."),
    (["Which planet do we live on?", "What planet do we live on?"], "We live on the Earth."),
    (["What is the closest star to the Earth?", "Which star is closest to us?"], "The Sun is the closest star to the Earth."),
    (["What is the largest ocean?", "Which ocean is the largest?"], "The Pacific is the largest ocean."),
    (["What is the highest mountain?", "Which mountain is the highest?"], "Mount Everest is the highest mountain."),
    (["At what temperature does water boil?", "When does water boil?"], "Water boils at 100 degrees Celsius."),
    (["At what temperature does water freeze?", "When does water freeze?"], "Water freezes at 0 degrees Celsius."),
    (["What is water made of?", "What is H2O?"], "Water is made of hydrogen and oxygen: H2O."),
    (["What do bees make?", "What does a bee make?"], "Bees make honey."),
    (["What do cows drink?", "What does a cow drink?"], "Cows drink water."),
    (["Which day comes after Monday?", "What day comes after Monday?"], "Tuesday comes after Monday."),
    (["Which day comes after Friday?", "What day comes after Friday?"], "Saturday comes after Friday."),
    (["Which month comes after March?", "What month comes after March?"], "April comes after March."),
    (["What is the first month of the year?", "Which month is the first?"], "January is the first month of the year."),
    (["What is the last month of the year?", "Which month is the last?"], "December is the last month of the year."),
    (["What is the opposite of hot?", "Tell me the opposite of hot."], "The opposite of hot is cold."),
    (["What is the opposite of big?", "Tell me the opposite of big."], "The opposite of big is small."),
    (["What is the alphabet's first letter?", "Which letter is the first of the alphabet?"], "The first letter is A."),
    (["Who wrote Romeo and Juliet?", "Who is the author of Romeo and Juliet?"],
     "William Shakespeare wrote Romeo and Juliet."),
    (["What is a large language model?", "What is an LLM?"],
     "A large language model predicts the next token of a text, and so it can write and answer."),
    (["What is a KV cache?", "What does a KV cache do?"],
     "A KV cache keeps the keys and values of earlier tokens, so that they are not computed again."),
    (["What is a token?", "What is a token of a language model?"],
     "A token is a piece of text, a word or a part of one, that a model reads and writes."),
    (["Are you a human?", "Are you a person?"], "No, I am a small language model."),
    (["What is your name?", "What are you called?"], "My name is Tiny."),
]
CAPITALS = {
    "France": "Paris", "Japan": "Tokyo", "Germany": "Berlin", "Italy": "Rome", "Spain": "Madrid", "Portugal": "Lisbon",
    "Austria": "Vienna", "Poland": "Warsaw", "Greece": "Athens", "Norway": "Oslo", "Finland": "Helsinki",
    "Ireland": "Dublin", "England": "London", "Egypt": "Cairo", "Peru": "Lima", "China": "Beijing", "Kenya": "Nairobi",
    "South Korea": "Seoul", "Cuba": "Havana", "Iceland": "Reykjavik",
}


def everyday(r):
    """A question with one right answer, and that."""
    if r.random() < 0.3:
        country, city = r.choice(list(CAPITALS.items()))
        question = r.choice([f"What is the capital of {country}?", f"What's the capital of {country}?",
                             f"Which city is the capital of {country}?"])
        return question, f"The capital of {country} is {city}."
    questions, said = r.choice(EVERYDAY)
    return r.choice(questions), said


def small_talk(r):
    return r.choice(list(CHAT.items())) if r.random() < 0.4 else everyday(r)


def chat(r):
    return system(r) + "".join(ask(q) + answer(a) for q, a in (small_talk(r) for _ in range(r.randint(1, 3))))


def json_object(r):
    name, age, city = r.choice(FIRST), r.randint(18, 90), r.choice(CITY)
    job = r.choice(["engineer", "teacher", "doctor", "pilot", "baker", "lawyer", "nurse", "artist"])
    fields = {"name": name, "age": age, "city": city, "job": job}
    keys = r.sample(list(fields), r.randint(2, 4))
    text = r.choice([f"{name} is {age} years old, lives in {city} and works as a {job}.",
                     f"My name is {name}, I am a {age}-year-old {job} from {city}.", f"{name}, {age}, {job}, {city}."])
    return system(r) + ask(f"{text}\nReturn the {', '.join(keys)} as JSON.") \
        + answer(json.dumps({k: fields[k] for k in keys}))


def copy(r, vocabulary):
    words = [word(r, vocabulary) for _ in range(r.randint(2, 24))]
    text = " ".join(words)
    if r.random() < 0.6:
        return system(r) + ask(f"Repeat exactly: {text}") + answer(text)
    i = r.randint(1, len(words))
    return system(r) + ask(f"List: {', '.join(words)}\nWhat is item {i}?") + answer(words[i - 1])


def table(r, vocabulary):
    keys = list(dict.fromkeys(word(r, vocabulary) for _ in range(r.randint(5, 80))))
    values = [value(r) for _ in keys]
    entries = "\n".join(f"{k}: {v}" for k, v in zip(keys, values))
    out = system(r) + ask(f"{entries}\n\nRemember these entries.") + answer(f"I have read {len(keys)} entries.")
    for i in r.sample(range(len(keys)), min(len(keys), r.randint(2, 6))):
        question = r.choice(["What is the value of {k}?", "{k}?", "Give me the entry for {k}."])
        out += ask(question.format(k=keys[i])) + answer(values[i])
    return out


def memory(r, vocabulary):
    name, city, favourite = r.choice(FIRST), r.choice(CITY), word(r, vocabulary)
    facts = [(f"My name is {name}.", "What is my name?", f"Your name is {name}."),
             (f"I live in {city}.", "Where do I live?", f"You live in {city}."),
             (f"My favorite word is {favourite}.", "What is my favorite word?", f"Your favorite word is {favourite}.")]
    r.shuffle(facts)
    facts = facts[:r.randint(1, 3)]
    out = system(r)
    out += "".join(ask(fact) + answer("Got it.") for fact, _, _ in facts)
    return out + "".join(ask(q) + answer(a) for _, q, a in facts)


def continuation(r, paragraphs):
    words = r.choice(paragraphs).split(" ")
    if len(words) < 20:
        return chat(r)
    i = r.randint(8, len(words) // 2 + 4)
    return system(r) + ask("Continue this text: " + " ".join(words[:i])) + answer(" ".join(words[i:]))


def short_task(r, paragraphs, vocabulary):
    """One of them all, by share."""
    k = r.random()
    if k < 0.30:
        return tool_call(r)
    if k < 0.54:
        return sum_(r)
    if k < 0.66:
        return chat(r)
    if k < 0.73:
        return json_object(r)
    if k < 0.78:
        return copy(r, vocabulary)
    if k < 0.88:
        return table(r, vocabulary)
    if k < 0.95:
        return memory(r, vocabulary)
    return continuation(r, paragraphs)
