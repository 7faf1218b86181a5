package jinja

import (
	"math"
	"math/big"
	"strconv"
	"strings"
)

func absFilter(_ *run, v *Value, a *callArgs) (Value, error) {
	if err := a.positional("abs", 0, 0); err != nil {
		return None, err
	}
	switch v.kind {
	case KindFloat:
		return Float(math.Abs(v.float())), nil
	case KindBool, KindInt, KindBig:
		if v.bigOf().Sign() < 0 {
			return negate(v)
		}
		return positive(v)
	case KindUndefined:
		return None, using(v)
	}
	return None, failf("bad operand type for abs(): '%s'", v.typeName())
}

func intFilter(r *run, v *Value, a *callArgs) (Value, error) {
	fallback, base := integer(0), integer(10)
	if err := bound(a, "int", []string{"default", "base"}, 0, &fallback, &base); err != nil {
		return None, err
	}
	switch v.kind {
	case KindUndefined:
		return None, using(v)
	case KindBool, KindInt, KindBig:
		return positive(v)
	case KindFloat:
		return truncated(v.float(), fallback), nil
	case KindString:
		if !base.isSmallInt() {
			return None, failf("'%s' object cannot be interpreted as an integer", base.typeName())
		}
		if err := r.scan(len(v.str)); err != nil {
			return None, err
		}
		if n, ok := parseInteger(v.str, int(base.num)); ok {
			return n, nil
		}
		if f, ok := ParseFloat(v.str); ok {
			return truncated(f, fallback), nil
		}
	}
	return fallback, nil
}

// truncated does the same as int(f). If f is infinite or not a number, it returns fallback.
func truncated(f float64, fallback Value) Value {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return fallback
	}
	z, _ := big.NewFloat(f).Int(nil)
	return bigInteger(z)
}

// parseInteger does the same as Python's int(s, base).
func parseInteger(s string, base int) (Value, bool) {
	s = strings.TrimFunc(s, IsSpace)
	digits := strings.TrimLeft(s, "+-")
	if len(s)-len(digits) > 1 || digits == "" || digits[0] == '_' || strings.HasSuffix(digits, "_") ||
		strings.Contains(digits, "__") || len(digits) > maxDigits {
		return Value{}, false
	}
	digits = strings.ReplaceAll(asciiDigits(digits), "_", "")
	lower := strings.ToLower(digits)
	for prefix, b := range map[string]int{"0x": 16, "0o": 8, "0b": 2} {
		if strings.HasPrefix(lower, prefix) && (base == b || base == 0) {
			digits, base = digits[2:], b
			break
		}
	}
	if base == 0 {
		if base = 10; len(digits) > 1 && digits[0] == '0' && strings.Trim(digits, "0") != "" {
			return Value{}, false
		}
	}
	if base < 2 || base > 36 || digits == "" || strings.ContainsAny(digits, "+-_") {
		return Value{}, false
	}
	z, ok := new(big.Int).SetString(digits, base)
	if !ok {
		return Value{}, false
	}
	if s[0] == '-' {
		z.Neg(z)
	}
	return bigInteger(z), true
}

// ParseFloat does the same as Python's float(s) for a string.
func ParseFloat(s string) (float64, bool) {
	s = asciiDigits(strings.TrimFunc(s, IsSpace))
	body := strings.ToLower(strings.TrimLeft(s, "+-"))
	switch body {
	case "inf", "infinity", "nan":
	default:
		if body == "" || strings.ContainsAny(body, "xpin") || body[0] == '_' {
			return 0, false
		}
		if strings.Contains(s, "_") {
			for i := range len(s) {
				if s[i] == '_' && (i == 0 || i+1 == len(s) || !isDecimal(s[i-1]) || !isDecimal(s[i+1])) {
					return 0, false
				}
			}
			s = strings.ReplaceAll(s, "_", "")
		}
	}
	f, err := strconv.ParseFloat(s, 64)
	return f, err == nil || math.IsInf(f, 0)
}

func floatFilter(r *run, v *Value, a *callArgs) (Value, error) {
	fallback := Float(0)
	if err := bound(a, "float", []string{"default"}, 0, &fallback); err != nil {
		return None, err
	}
	switch v.kind {
	case KindUndefined:
		return None, using(v)
	case KindBool, KindInt, KindBig, KindFloat:
		f, ok := v.asFloat()
		if !ok {
			return None, failf("int too large to convert to float")
		}
		return Float(f), nil
	case KindString:
		if err := r.scan(len(v.str)); err != nil {
			return None, err
		}
		if f, ok := ParseFloat(v.str); ok {
			return Float(f), nil
		}
	}
	return fallback, nil
}

func roundFilter(r *run, v *Value, a *callArgs) (Value, error) {
	precision, method := integer(0), Text("common")
	if err := bound(a, "round", []string{"precision", "method"}, 0, &precision, &method); err != nil {
		return None, err
	}
	if v.kind == KindUndefined {
		return None, using(v)
	}
	if method.str != "common" && method.str != "ceil" && method.str != "floor" {
		return None, failf("method must be common, ceil or floor")
	}
	if !v.isNumber() || !precision.isSmallInt() || max(precision.num, -precision.num) > 400 {
		return None, failf("type %s doesn't define __round__ method", v.typeName())
	}
	if method.str == "common" {
		if v.isInteger() {
			return roundInteger(v, precision.num)
		}
		return Float(roundHalfEven(v.float(), int(precision.num))), nil
	}
	ten := integer(10)
	scale, err := numberOp("**", &ten, &precision)
	if err != nil {
		return None, err
	}
	scaled, err := numberOp("*", v, &scale)
	if err != nil {
		return None, err
	}
	f, ok := scaled.asFloat()
	if !ok || math.IsInf(f, 0) || math.IsNaN(f) {
		return None, failf("cannot convert float to integer")
	}
	if method.str == "ceil" {
		f = math.Ceil(f)
	} else {
		f = math.Floor(f)
	}
	whole := truncated(f, None)
	if scaled.isInteger() {
		whole = scaled
	}
	return numberOp("/", &whole, &scale)
}

// roundHalfEven does the same as Python's round(f, n). It rounds the exact value of f to n decimal digits.
func roundHalfEven(f float64, n int) float64 {
	if math.IsInf(f, 0) || math.IsNaN(f) || n > 323 {
		return f
	}
	if n < 0 {
		scale := math.Pow(10, float64(-n))
		return math.RoundToEven(f/scale) * scale
	}
	out, _ := strconv.ParseFloat(strconv.FormatFloat(f, 'f', n, 64), 64)
	return out
}

func roundInteger(v *Value, n int64) (Value, error) {
	if n >= 0 {
		return positive(v)
	}
	scale := new(big.Int).Exp(big.NewInt(10), big.NewInt(-n), nil)
	q, m := new(big.Int).DivMod(v.bigOf(), scale, new(big.Int))
	switch twice := new(big.Int).Lsh(m, 1); twice.Cmp(scale) {
	case 1:
		q.Add(q, big.NewInt(1))
	case 0:
		q.Add(q, big.NewInt(int64(q.Bit(0))))
	}
	return checked(q.Mul(q, scale))
}

func fileSize(r *run, v *Value, a *callArgs) (Value, error) {
	binary := falseValue
	if err := bound(a, "filesizeformat", []string{"binary"}, 0, &binary); err != nil {
		return None, err
	}
	n, ok := 0.0, false
	if v.isNumber() {
		n, ok = v.asFloat()
	} else if v.kind == KindString {
		n, ok = ParseFloat(v.str)
	}
	if !ok {
		return None, failf("could not convert to float")
	}
	base, suffix := 1000.0, "B"
	if binary.truthy() {
		base, suffix = 1024, "iB"
	}
	switch {
	case n == 1:
		return Text("1 Byte"), nil
	case n < base:
		whole := truncated(n, None)
		s, err := r.str(&whole)
		return Text(s + " Bytes"), err
	}
	prefixes := "kMGTPEZY"
	if binary.truthy() {
		prefixes = "KMGTPEZY"
	}
	unit := base * base
	i := 0
	for ; i < len(prefixes)-1 && n >= unit; i++ {
		unit *= base
	}
	return Text(strconv.FormatFloat(base*n/unit, 'f', 1, 64) + " " + prefixes[i:i+1] + suffix), nil
}
