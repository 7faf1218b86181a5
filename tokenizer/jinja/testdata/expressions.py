"""Writes expressions.json: small templates, and the texts that CPython's jinja2 renders from them with the
settings of Transformers.

    <a Python with transformers>/bin/python testdata/expressions.py > testdata/expressions.json

The cases are our own: every operator, filter, test and method with values of every type, and cases that are
written by hand.
"""

import json
import re

import transformers.utils.chat_template_utils as utils

VARS = json.loads("""{"s": "Hello, World", "e": "", "u": "Grüße 你好 😀 ß", "w": "  pad\\t\\n", "m": "a\\nb\\r\\n\\nc\\u2028d",
 "i": 7, "z": 0, "n": -3, "f": 2.5, "g": 1e16, "t": true, "nn": null, "l": [3, 1, 2], "el": [], "ls": ["b", "A", "c", "a"],
 "d": {"b": 1, "a": [1, 2], "items": "shadow", "C": null}, "ed": {}, "ll": [["x", 1], ["y", 2]],
 "ds": [{"k": "x", "v": 2, "o": {"p": 1}}, {"k": "Y", "v": 1, "o": {"p": 3}}, {"k": "x", "v": 3, "o": {}}],
 "big": 123456789012345678901234567890, "q": "it's \\"q\\" \\\\ \\u0007 \\u00a0 \\u200b", "h": "<b>&'\\"</b>", "num": "42", "fl": " 3.5 "}""")

VALUES = ["s", "e", "u", "i", "z", "n", "f", "t", "nn", "l", "el", "d", "big", "missing", "(1, 2)", "range(3)", "'3'", "g"]
cases = []


def case(*templates):
    cases.extend(templates)


def grid(pattern, *axes):
    def go(prefix, rest):
        if not rest:
            case(pattern.format(*prefix))
            return
        for v in rest[0]:
            go(prefix + [v], rest[1:])

    go([], list(axes))


grid("{{{{ {0} {1} {2} }}}}", ["s", "i", "n", "f", "t", "nn", "l", "(1, 2)", "d", "missing", "big"], ["+", "-", "*", "/", "//", "%", "**"], ["i", "z", "n", "f", "t", "l", "s", "missing"])
grid("{{{{ {0} {1} big }}}}", ["s", "i", "n", "f", "t", "l", "missing", "big"], ["+", "-", "/", "//", "%"])
grid("{{{{ {0} {1} {2} }}}}", VALUES, ["==", "<", "in", "~"], ["i", "f", "s", "l", "d", "nn", "missing", "t"])
grid("{{{{ {0} is {1} }}}}", VALUES, ["defined", "undefined", "none", "string", "mapping", "iterable", "sequence", "number", "integer", "float", "boolean", "true", "false", "callable", "odd", "even", "lower", "upper", "divisibleby 7", "sameas true", "in [7, 'x']", "eq 7", "gt 1", "escaped"])
grid("{{{{ {0} | {1} }}}}", VALUES + ["w", "ls", "ds", "q", "h", "num", "fl", "ll"], ["tojson", "length", "string", "list", "int", "float", "first", "last", "upper", "lower", "title", "capitalize", "trim", "abs", "round", "reverse | list", "sort", "unique | list", "join('-')", "sum", "min", "max", "default('D')", "default('D', true)", "e", "wordcount", "indent", "batch(2) | list", "slice(2) | list", "dictsort", "items | list", "urlencode", "striptags", "center(20)", "truncate(8)", "truncate(8, true, '…', 0)", "replace('l', 'L')", "count", "safe", "format(1)", "map('upper') | list", "select | list", "reject('none') | list", "tojson(indent=2)", "xmlattr", "filesizeformat"])
grid("{{{{ {0}[{1}] }}}}", ["s", "u", "l", "(1, 2, 3)", "range(5)", "e", "d", "nn", "missing"], ["0", "-1", "5", "1:", ":-1", "::-1", "-2:", "1:100", "::2", "-100:2", "3:1:-1", "'b'", "none:none", "1.5", "true", "::0"])
grid("{{{{ {0}.{1} }}}}", ["s", "u", "w", "m", "e", "h", "'aXbXc'", "'ǆ ǅ ŉx'", "'ΑΣ Σ'"],
     ["upper()", "lower()", "title()", "capitalize()", "swapcase()", "strip()", "lstrip()", "rstrip()", "strip('dH ')", "split()", "split('l')", "split(none, 1)", "split('X', 1)", "rsplit()", "rsplit('l', 1)", "rsplit(none, 1)", "splitlines()", "splitlines(true)",
      "startswith('He')", "startswith(('x', 'G'))", "endswith('d')", "find('o')", "rfind('o')", "find('o', 5)", "find('好')", "index('zz')", "count('l')", "count('')", "replace('l', 'LL')", "replace('l', 'LL', 1)", "replace('', '.')",
      "isdigit()", "isalpha()", "isalnum()", "isupper()", "islower()", "isspace()", "istitle()", "isidentifier()", "isprintable()", "partition('l')", "rpartition('l')", "removeprefix('He')", "removesuffix('ld')", "zfill(15)", "center(15, '*')", "ljust(15)", "rjust(15, '.')", "join(['a', 'b'])", "format(1)", "expandtabs(4)", "casefold()"])
grid("{{{{ d.{0} }}}}", ["items()", "keys()", "values()", "items", "get('b')", "get('zz')", "get('zz', 5)", "get(nn)", "pop('b')", "update({})", "copy()", "b", "C", "zz", "zz.y", "__class__", "_x", "items() | list", "keys() | first", "values() | last", "setdefault('x', 1)"])
grid("{{{{ '{0}'.format(i, f, s, nn, x=3) }}}}", ["{}", "{0}", "{1:.2f}", "{0:5d}|", "{0:<5}|", "{2:>20}|", "{2:^20}|", "{2:.3}", "{0:+}", "{0:x}", "{0:#b}", "{1:e}", "{1:g}", "{1:10.3f}|", "{x}", "{2!r}", "{3}", "{{}}", "{0:05}", "{1:%}", "{5}", "{y}", "{0} {}", "{0:,}", "{2[0]}", "{0:*^9}", "{1}", "{1:08.2f}", "{0:c}", "{3:5}"])
grid("{{{{ '{0}' % (i, f) }}}}", ["%d %s", "%s %s", "%5d|%-8.2f|", "%05d %e", "%x %g", "%d", "%s %s %s", "%r %r", "%+d %5.1f", "%i %%%s", "%c %s", "%o %G"])
grid("{{{{ {0} }}}}", ["1", "1.0", "1e100", "1e15", "1e16", "1.5e-5", "0.0001", "0.1 + 0.2", "1/3", "10**20", "2**-1", "-7 // 2", "-7 % 3", "7 % -3", "-7.5 // 2", "7.5 % -2", "1_000", "0x1F", "0b11", "0o17", "1e3", "100000000000000000000", "-0.0", "2**0.5", "1 if z else 2", "1 if z", "not z", "not not 1", "1 < 2 < 3", "1 < 3 < 2", "1 == 1.0 == true", "'a' 'b'", "'a' ~ 1 ~ nn ~ true ~ 1.0", "[1, 'a', nn, true, 1.0, [2], {'a': 1}, (1,), ()]", "{'a': 1, 'b': [1, 2], 1: 'x', nn: 2}", "(1)", "(1,)", "()", "1, 2", "'\\n\\t\\x41\\u00e9\\\\'", "\"it's\"", "-i", "+i", "-f", "- i | abs", "i.real", "f.is_integer()", "i.bit_length()", "big + 1", "big * big", "-big", "big | int", "big == 123456789012345678901234567890", "9223372036854775807 + 1", "-9223372036854775808 - 1", "9223372036854775807 * 3", "3.7 | int", "'0x1f' | int(0, 16)", "'z' | int(9)", "' 12 ' | int", "'1e3' | int", "'1_0' | int", "'inf' | float", "'nan' | float", "2.675 | round(2)", "2.5 | round", "3.5 | round", "12345 | round(-2)", "2.1 | round(method='ceil')", "2.9 | round(0, 'floor')", "true + true", "true | int", "none | int", "[1, 2] | int(5)", "none ~ ''", "[none] | tojson", "missing | tojson", "(1, 2) | tojson", "range(3) | list", "range(5, 0, -2) | list", "range(1000000)", "dict(a=1, b=2)", "dict([('a', 1)])", "dict(d, z=1)", "namespace(a=1)", "namespace(a=1).a", "namespace(a=1).b", "cycler(1, 2).next()", "joiner('-')()", "lipsum is defined", "[1, 2, 3][1:] + [4]", "'x' * 3", "3 * [1]", "'ab' in 'cab'", "1 in 'a'", "'b' in d", "2 not in l", "(1, 2) == [1, 2]", "[1, [2, 3]] == [1, [2, 3]]", "{'a': 1} == {'a': 1.0}", "[1, 2] < [1, 3]", "(1, 'a') < (1, 'b')", "'a' < 'B'", "s is string and s is not mapping", "s[0] is upper", "s | list | length", "missing.foo", "missing['foo']", "missing()", "missing + 1", "missing == missing2", "missing in [1]", "missing | list", "missing | join", "missing | length", "missing | upper", "loop is defined", "self is defined", "d['items']", "d.items is callable", "d.get is callable", "d['b'] is defined", "d['zz'] is defined", "l[10] is defined", "l.0", "ll.1.0", "s.upper is callable", "s['upper']()", "s.foo is defined", "nn.foo is defined", "nn.foo.bar"])
case(
    "{% for x in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.previtem }}{{ loop.nextitem }}|{% endfor %}",
    "{% for x in l if x > 1 %}{{ x }}{{ loop.length }}{{ loop.last }}{% else %}none{% endfor %}",
    "{% for x in el %}{{ x }}{% else %}none{% endfor %}",
    "{% for x in missing %}{{ x }}{% else %}none{% endfor %}",
    "{% for x in nn %}{{ x }}{% endfor %}",
    "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}",
    "{% for k, v in d | dictsort %}{{ k }}={{ v }};{% endfor %}",
    "{% for k in d %}{{ k }}{% endfor %}",
    "{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}",
    "{% for a, b in [1] %}{% endfor %}", "{% for a, b in [(1, 2, 3)] %}{% endfor %}", "{% for a, b in ['xy'] %}{{ b }}{{ a }}{% endfor %}",
    "{% for c in u %}[{{ c }}]{% endfor %}",
    "{% for x in range(10) %}{% if x == 2 %}{% continue %}{% endif %}{% if x == 5 %}{% break %}{% endif %}{{ x }}{% endfor %}",
    "{% for x in l %}{{ loop.cycle('a', 'b') }}{{ loop.changed(x // 2) }}{% endfor %}",
    "{% for x in [[1, [2, [3]]], [4]] recursive %}{% if x is iterable %}<{{ loop.depth }}{{ loop(x) }}>{% else %}{{ x }}{% endif %}{% endfor %}",
    "{% for x in ds | map(attribute='k') %}{{ x }}{{ loop.length }}{% endfor %}",
    "{% for x in l %}{% for y in l %}{{ loop.index }}{% endfor %}{{ loop.index }}{% endfor %}",
    "{% set x = 1 %}{% for y in l %}{{ x }}{% set x = 2 %}{{ x }}{% endfor %}{{ x }}",
    "{% for y in l %}{% if loop.first %}{% set q2 = 5 %}{% endif %}{{ q2 }}|{% endfor %}",
    "{% for y in l %}{{ i }}{% endfor %}{% set i = 1 %}{{ i }}",
    "{% if z %}{% set i = 1 %}{% endif %}{{ i }}", "{% if z %}{% set i = 1 %}{% elif i %}{% set i = 2 %}{% endif %}{{ i }}",
    "{% if z %}{% set nw = 1 %}{% else %}{% set nw = 2 %}{% endif %}{{ nw }}",
    "{% macro m() %}{{ i }}{% endmacro %}{{ m() }}{% set i = 1 %}{{ m() }}",
    "{% macro m(a, b=2, c=b) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(1) }}{{ m(1, c=3) }}{{ m(b=5) }}{{ m(1, 2, 3) }}",
    "{% macro m(a) %}{{ a }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, 3, x=4) }}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(b=2) }}", "{% macro m(a) %}{{ a is defined }}{% endmacro %}{{ m() }}",
    "{% macro m(a) %}[{{ caller(a) }}]{% endmacro %}{% call(x) m(3) %}<{{ x }}>{% endcall %}", "{% macro m() %}x{% endmacro %}{% call m() %}y{% endcall %}",
    "{% macro m() %}{{ caller() if caller else 'no' }}{% endmacro %}{{ m() }}{% call m() %}y{% endcall %}",
    "{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(5) }}",
    "{% macro f(n) %}{% set n = n + 1 %}{{ n }}{% endmacro %}{{ f(5) }}{{ n }}", "{% macro m() %}{% endmacro %}{{ m }}{{ m.name }}{{ m() is string }}",
    "{{ m() }}{% macro m() %}x{% endmacro %}",
    "{% set ns = namespace(x=0) %}{% for y in l %}{% set ns.x = ns.x + y %}{% endfor %}{{ ns.x }}{{ ns }}",
    "{% set d.x = 1 %}", "{% set nope.x = 1 %}", "{% set a, b = 1, 2 %}{{ a }}{{ b }}", "{% set a, b = [1] %}", "{% set a = b = 1 %}", "{% set (a, b) = (1, 2) %}{{ a }}",
    "{% set x %}a{{ i }}b{% endset %}{{ x }}{{ x is string }}", "{% set x | upper | replace('A', 'z') %}a{{ i }}b{% endset %}{{ x }}",
    "{% filter upper %}a{{ i }}{% set k = 3 %}{{ k }}{% endfilter %}{{ k }}", "{% filter indent(2) | upper %}a\nb{% endfilter %}",
    "{% with a = 1, b = i %}{{ a }}{{ b }}{% set c = 1 %}{% endwith %}{{ a }}{{ c }}", "{% with %}{% set i = 3 %}{{ i }}{% endwith %}{{ i }}", "{% with i = 1, b = i %}{{ b }}{% endwith %}",
    "{% generation %}a{{ i }}{% set i = 2 %}{{ i }}{% endgeneration %}{{ i }}", "{% print 1, 2 %}", "{% raw %}{{ x }}{% endraw %}", "a{# c #}b", "{%- raw -%}\n x {%- endraw -%}\n y", "{{ '{{' }}{{ '%}' }}",
    "a\n  {% if true %}\n  b\n  {% endif %}\nc\n", "a\n  {%+ if true %}\n  b\n  {%+ endif +%}\nc\n", "a \n {%- if true -%} \n b \n {%- endif -%} \n c", "  {{ i }}  \n  {{- i -}}  \n x", "x\n  {# c #}\n y", "x {#- c -#} y", "x\n\n", "x\r\ny\r{% if true %}\r\nz{% endif %}", "{% if true -%}\n\n a {% endif %}",
    "  {% set x = 1 %}  {{ x }}", "{{ 1 }} {% if true %} {% endif %}\n", "\t{% if true %}\n\t\tx\n\t{% endif %}\n", "{{ {'a': {'b': 1}}.a.b }}", "{{ {'a': 1}['a'] }}", "{{ [[1]][0][0] }}", "{{ (i, s)[1] }}",
    "{{ raise_exception('no') }}", "{{ raise_exception(i) }}", "{{ raise_exception() }}", "{{ strftime_now('%Y') | length }}", "{{ x.y.z }}", "{% if x.y %}{% endif %}", "{% if x.y.z %}{% endif %}", "{{ nosuch(1) }}", "{{ 1 | nosuch }}", "{% if z %}{{ 1 | nosuch }}{% endif %}", "{% if i %}{{ 1 | nosuch }}{% endif %}", "{{ 1 is nosuch }}", "{% nosuch %}", "{% if %}", "{% endif %}", "{{ }}", "{{ 1 + }}", "{{ 'a }}", "{% for %}", "{% if 1 %}", "{{ 1 2 }}", "{{ a b }}", "{{ [1, }}", "{% set 1 = 2 %}", "{% set true = 2 %}", "{% break %}", "{% for loop in l %}{% endfor %}", "{% do 1 %}", "{{ f(**1) }}", "{{ dict(**d) }}", "{{ dict(**{'x': 1}) }}", "{{ range(*[1, 4]) | list }}", "{{ '%s' | format(i) }}", "{{ '%(a)s' | format(a=1) }}", "{{ '{}-{}'.format(*l) }}",
    "{{ ds | map(attribute='k') | join(',') }}", "{{ ds | map(attribute='o.p') | list }}", "{{ ds | map(attribute='o.p', default='-') | list }}", "{{ ds | selectattr('v', 'gt', 1) | map(attribute='v') | list }}", "{{ ds | rejectattr('k', 'equalto', 'x') | list }}", "{{ ds | selectattr('o.p') | list | length }}", "{{ ds | sort(attribute='v') | map(attribute='v') | list }}", "{{ ds | sort(attribute='k,v') | map(attribute='v') | list }}", "{{ ds | sort(attribute='k', case_sensitive=true) | map(attribute='k') | list }}", "{{ ds | sort(reverse=true, attribute='v') | map(attribute='v') | list }}", "{{ ds | groupby('k') }}", "{{ ds | groupby('k', case_sensitive=true) | map(attribute='grouper') | list }}", "{% for g, xs in ds | groupby('k') %}{{ g }}{{ xs | length }}{% endfor %}", "{{ (ds | groupby('v'))[0].list }}", "{{ ds | unique(attribute='k') | map(attribute='v') | list }}", "{{ ds | sum(attribute='v') }}", "{{ ds | max(attribute='v') }}", "{{ ds | min(attribute='k') }}", "{{ ls | sort }}{{ ls | sort(true) }}{{ ls | sort(case_sensitive=true) }}", "{{ ls | unique | list }}", "{{ ['a', 'A'] | unique | list }}", "{{ ['a', 'A'] | unique(true) | list }}", "{{ [1, 'a'] | sort }}", "{{ ds | sort }}", "{{ ['a', 1] | max }}",
    "{{ ls | batch(3, 'x') | list }}", "{{ ls | slice(3, 'x') | list }}", "{{ ls | map('upper') | join }}", "{{ ls | map('replace', 'a', 'z') | list }}", "{{ l | select('odd') | list }}", "{{ l | reject('gt', 1) | list }}", "{{ l | select('divisibleby', 3) | list }}", "{{ ls | first }}{{ ls | last }}{{ el | first }}|{{ el | last is defined }}", "{{ ls | join(', ', attribute='x') }}", "{{ d | dictsort(by='value') }}", "{{ {'b': 2, 'a': 3} | dictsort(by='value', reverse=true) }}", "{{ {'b': 2, 'A': 3} | dictsort(true) }}", "{{ m | indent(2, true) }}", "{{ m | indent('>', blank=true) }}", "{{ m | indent(first=true, width=1) }}", "{{ 'a b c d e f' | truncate(5) }}", "{{ 'a b c d e f' | truncate(5, leeway=0) }}", "{{ 'a b c d e f' | truncate(5, true, leeway=0) }}", "{{ 'x' | truncate(2) }}", "{{ u | wordcount }}", "{{ h | e }}{{ h | e | e }}{{ h | forceescape }}{{ h | safe }}", "{{ (h | safe) + h }}", "{{ ('<' | e) ~ '<' }}", "{{ (h | safe) | tojson }}", "{{ [h | safe] }}", "{{ ('%s' | safe) % h }}",
    "{{ d | tojson(sort_keys=true) }}", "{{ d | tojson(separators=(',', ':')) }}", "{{ u | tojson }}{{ u | tojson(ensure_ascii=true) }}", "{{ d | tojson(indent=4) }}", "{{ [] | tojson(indent=2) }}{{ {} | tojson(indent=2) }}", "{{ {1: 2, none: 3, true: 4, 1.5: 5} | tojson }}", "{{ {(1, 2): 3} | tojson }}", "{{ q | tojson }}", "{{ d | tojson(indent='--') }}", "{{ [1e22, 1e-7, 0.1, 100.0] | tojson }}", "{{ d.items() | tojson }}", "{{ d.items() | list | tojson }}", "{{ [1, [2]] | tojson(indent=0) }}", "{{ d | tojson(true) }}", "{{ d | tojson(foo=1) }}",
    "{{ q }}{{ [q] }}", "{{ [u, m, w] }}", "{{ [\"it's\", 'x\"y', 'a\\'b\"c'] }}", "{{ {'a': q} }}", "{{ ['\\x7f\\x80\\u00ad\\u2028\\ue000'] }}", "{{ [1.0, 1e16, 1e-5, 123456.789, 1e300] }}", "{{ [true, none, missing] }}",
    "{{ s if i else e }}", "{{ 'a' if z else 'b' if n else 'c' }}", "{{ (1 if z) is defined }}", "{{ i and s }}{{ z and s }}{{ z or s }}{{ missing or 'x' }}", "{{ not missing }}", "{{ missing is defined and missing.x }}", "{{ 1 is odd and 2 is even }}", "{{ 3 is divisibleby(3) }}", "{{ 'a' is in ['a'] }}", "{{ 5 is not in l }}", "{{ l is sameas l }}{{ l is sameas [3, 1, 2] }}{{ none is sameas none }}", "{{ s is upper }}", "{{ 'lower' is filter }}{{ 'xx' is filter }}{{ 'odd' is test }}", "{{ i is gt(3) }}", "{{ i is == 7 }}",
    "{{ s | upper | lower | title }}", "{{ s | attr('upper') }}", "{{ d | attr('b') }}", "{{ d | attr('items') is callable }}", "{{ ('a', 'b') | join }}", "{{ 'abc' | list }}{{ 'abc' | reverse }}{{ 'abc' | first }}{{ 'abc' | last }}{{ 'abc' | sort }}", "{{ 'ÀÉ' | lower }}{{ 'straße' | upper }}{{ 'ﬁne' | capitalize }}{{ \"don't stop-me (now) [x]\" | title }}", "{{ 'x' | center(5) }}|", "{{ h | striptags }}{{ '<a>x</a>  y <!-- z --> &amp;' | striptags }}", "{{ 'a b/ü?' | urlencode }}{{ {'a': 1, 'b c': 'd&'} | urlencode }}", "{{ 1000000 | filesizeformat }}{{ 1024 | filesizeformat(true) }}", "{{ {'a': 1, 'b': none, 'c': '<'} | xmlattr }}",
    "{% set x = [1, 2] %}{{ x.append(3) }}", "{{ l.index(1) }}{{ l.count(3) }}", "{{ l.index(9) }}", "{{ (1, 2).index(2) }}", "{{ l.sort() }}", "{{ l.copy() }}", "{{ ''.__class__ }}", "{{ ''.__class__.__mro__ }}", "{{ d.__len__ is defined }}", "{{ s.format_map({}) }}", "{{ '{a}'.format_map({'a': 1}) }}", "{{ dict.fromkeys(['a', 'b'], 1) }}", "{{ d.fromkeys('ab') }}",
    "{% set gen = l | map('string') %}{{ gen | join }}{{ gen | join }}", "{% set gen = l | select %}{% if gen %}yes{% endif %}{{ gen | list }}", "{{ l | map('string') | length }}", "{{ (l | map('string'))[0] }}", "{{ l | reverse | first }}", "{{ d.keys() | length }}{{ d.keys()[0] is defined }}", "{{ 'b' in d.keys() }}{{ 1 in d.values() }}{{ ('b', 1) in d.items() }}", "{{ d.keys() == d.keys() }}", "{{ d.values() | list + [1] }}",
    "{{ loop }}", "{% for x in l %}{{ loop }}{% endfor %}", "{% for x in [1] %}{{ loop.foo }}{% endfor %}", "{% for x in l %}{% set loop = 1 %}{% endfor %}", "{{ self }}", "{% block x %}{% endblock %}"[:0] or "x",
    "{{ s.split(',') | map('trim') | list }}", "{{ s.split(', ')[-1].strip('d') }}", "{{ u | length }}{{ u[6:8] }}{{ u[-1] }}", "{{ '' | first }}", "{{ 'a\\tb' }}", "{{ 'a\nb' }}", "{{ 'a\\\nb' }}", "{{ '\\d' }}", "{{ '\\101' }}", "{{ 1.real }}", "{{ 1 .real }}", "{{ 1.e }}", "{{ .5 }}", "{{ 5. }}", "{{ 1.5.real }}", "{{ 0123 }}", "{{ 00 }}", "{{ 1__0 }}", "{{ 0xg }}", "{{ é }}", "{{ d.é }}", "{{ a$b }}", "{{ a@b }}", "{{ a ? b }}", "{{ !a }}", "{{ a && b }}", "{{ ) }}", "{{ (1] }}",
)


def run(template):
    import jinja2

    try:
        compiled = utils._compile_jinja_template(template)
        text = compiled.render(**json.loads(json.dumps(VARS)))
        text.encode()
        return {"text": text}
    except jinja2.exceptions.TemplateError as e:
        return {"raised": str(e)} if type(e) is jinja2.exceptions.TemplateError else {"error": type(e).__name__}
    except Exception as e:
        return {"error": type(e).__name__}


def main():
    out = []
    # powers without an exact result: complex numbers, and numbers whose last digits depend on C's pow
    skipped = {"{{ n ** f }}", "{{ big ** f }}"}
    for template in dict.fromkeys(c for c in cases if c not in skipped):
        result = run(template)
        if re.search(r"0x[0-9a-f]{6,}", result.get("text", "")) or len(result.get("text", "")) > 3000:
            continue
        out.append([template, result])
    lines = ",\n".join(json.dumps(c, ensure_ascii=False) for c in out)
    print('{"vars": %s,\n"cases": [\n%s\n]}' % (json.dumps(VARS, ensure_ascii=False), lines))


main()
