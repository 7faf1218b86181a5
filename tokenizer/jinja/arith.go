package jinja

import (
	"math"
	"math/big"
	"math/bits"
	"strings"
)

func (v *Value) float() float64 { return math.Float64frombits(uint64(v.num)) }

// Float returns a float.
func Float(f float64) Value { return Value{kind: KindFloat, num: int64(math.Float64bits(f))} }

// asFloat returns a number as a float. It returns false if the number is an integer that is too large for a float.
func (v *Value) asFloat() (float64, bool) {
	switch v.kind {
	case KindFloat:
		return v.float(), true
	case KindBig:
		f, _ := new(big.Float).SetInt(v.bigOf()).Float64()
		return f, !math.IsInf(f, 0)
	}
	return float64(v.num), true
}

// maxBits bounds the size of integers, in bits. No template needs larger integers.
const maxBits = 1 << 15

func checked(z *big.Int) (Value, error) {
	if z.BitLen() > maxBits {
		return None, &limitError{"an integer is too long"}
	}
	return bigInteger(z), nil
}

func negate(v *Value) (Value, error) {
	switch v.kind {
	case KindBool, KindInt:
		if v.num != math.MinInt64 {
			return integer(-v.num), nil
		}
		fallthrough
	case KindBig:
		return bigInteger(new(big.Int).Neg(v.bigOf())), nil
	case KindFloat:
		return Float(-v.float()), nil
	case KindUndefined:
		return None, using(v)
	}
	return None, failf("bad operand type for unary -: '%s'", v.typeName())
}

func positive(v *Value) (Value, error) {
	switch v.kind {
	case KindBool, KindInt:
		return integer(v.num), nil
	case KindBig, KindFloat:
		return *v, nil
	case KindUndefined:
		return None, using(v)
	}
	return None, failf("bad operand type for unary +: '%s'", v.typeName())
}

// arithmetic applies a binary arithmetic operator to two values of any kind.
func (r *run) arithmetic(op string, a, b *Value) (Value, error) {
	if a.kind == KindUndefined {
		return None, using(a)
	}
	if a.isNumber() && b.isNumber() {
		return numberOp(op, a, b)
	}
	switch op {
	case "+":
		if v, ok, err := r.concatenate(a, b); ok || err != nil {
			return v, err
		}
	case "*":
		switch {
		case b.isInteger():
			if v, ok, err := r.repeat(a, b); ok || err != nil {
				return v, err
			}
		case a.isInteger():
			if v, ok, err := r.repeat(b, a); ok || err != nil {
				return v, err
			}
		}
	case "%":
		if a.kind == KindString {
			return r.percent(a, b)
		}
	}
	if b.kind == KindUndefined {
		return None, using(b)
	}
	return None, failf("unsupported operand type(s) for %s: '%s' and '%s'", op, a.typeName(), b.typeName())
}

// concatenate does the operator + for texts and sequences.
func (r *run) concatenate(a, b *Value) (Value, bool, error) {
	switch {
	case a.kind == KindString && b.kind == KindString:
		x, y := a.str, b.str
		if a.safe && !b.safe {
			y = escapeHTML(y)
		} else if b.safe && !a.safe {
			x = escapeHTML(x)
		}
		return Value{kind: KindString, safe: a.safe || b.safe, str: x + y}, true, r.grow(len(x) + len(y))
	case a.isSequence() && a.kind == b.kind:
		x, y := a.items(), b.items()
		if err := r.grow((len(x) + len(y)) * valueBytes); err != nil {
			return None, false, err
		}
		out := make([]Value, 0, len(x)+len(y))
		return Value{kind: a.kind, ref: &list{append(append(out, x...), y...)}}, true, nil
	}
	return None, false, nil
}

// repeat does the operator * for a text or a sequence.
func (r *run) repeat(v, times *Value) (Value, bool, error) {
	n := 0
	if times.kind == KindBig {
		if times.bigOf().Sign() > 0 {
			n = math.MaxInt32
		}
	} else {
		n = int(max(0, min(times.num, math.MaxInt32)))
	}
	switch v.kind {
	case KindString:
		if err := r.growTimes(len(v.str), n); err != nil {
			return None, false, err
		}
		return Value{kind: KindString, safe: v.safe, str: strings.Repeat(v.str, n)}, true, nil
	case KindList, kindTuple:
		items := v.items()
		if err := r.growTimes(len(items)*valueBytes, n); err != nil {
			return None, false, err
		}
		out := make([]Value, 0, len(items)*n)
		for range n {
			if len(items) == 0 {
				break
			}
			out = append(out, items...)
		}
		return Value{kind: v.kind, ref: &list{out}}, true, nil
	}
	return None, false, nil
}

// growTimes charges memory for n pieces of size bytes each. The product cannot overflow.
func (r *run) growTimes(size, n int) error {
	hi, lo := bits.Mul64(uint64(size), uint64(n))
	if hi != 0 || lo > math.MaxInt32 {
		return &limitError{"the memory limit is reached"}
	}
	return r.grow(int(lo))
}

func numberOp(op string, a, b *Value) (Value, error) {
	if a.kind == KindFloat || b.kind == KindFloat || op == "/" {
		return floatOp(op, a, b)
	}
	if a.kind != KindBig && b.kind != KindBig {
		if v, ok, err := smallOp(op, a.num, b.num); ok || err != nil {
			return v, err
		}
	}
	x, y := a.bigOf(), b.bigOf()
	z := new(big.Int)
	switch op {
	case "+":
		z.Add(x, y)
	case "-":
		z.Sub(x, y)
	case "*":
		z.Mul(x, y)
	case "//", "%":
		if y.Sign() == 0 {
			return None, failf("integer division or modulo by zero")
		}
		m := new(big.Int)
		z.DivMod(x, y, m)
		// DivMod is Euclidean division, but Python rounds the quotient down. The results differ if the divisor is negative.
		if m.Sign() != 0 && y.Sign() < 0 {
			z.Sub(z, big.NewInt(1))
			m.Add(m, y)
		}
		if op == "%" {
			z = m
		}
	case "**":
		return power(x, y)
	}
	return checked(z)
}

// smallOp applies an operator to integers, if the result fits into 64 bits. Otherwise the boolean result is false.
func smallOp(op string, x, y int64) (Value, bool, error) {
	switch op {
	case "+":
		if z := x + y; (z > x) == (y > 0) {
			return integer(z), true, nil
		}
	case "-":
		if z := x - y; (z < x) == (y > 0) {
			return integer(z), true, nil
		}
	case "*":
		hi, lo := bits.Mul64(uint64(max(x, -x)), uint64(max(y, -y)))
		if x != math.MinInt64 && y != math.MinInt64 && hi == 0 && lo <= math.MaxInt64 {
			return integer(x * y), true, nil
		}
	case "//", "%":
		if y == 0 {
			return None, false, failf("integer division or modulo by zero")
		}
		if x == math.MinInt64 && y == -1 {
			return None, false, nil
		}
		q, m := x/y, x%y
		if m != 0 && (m < 0) != (y < 0) {
			q--
			m += y
		}
		if op == "%" {
			q = m
		}
		return integer(q), true, nil
	}
	return None, false, nil
}

func power(x, y *big.Int) (Value, error) {
	if y.Sign() < 0 {
		a, b := bigInteger(x), bigInteger(y)
		return floatOp("**", &a, &b)
	}
	if x.BitLen() > 1 && (!y.IsInt64() || y.Int64()*int64(x.BitLen()-1) > maxBits) {
		return None, &limitError{"an integer is too long"}
	}
	if x.BitLen() <= 1 { // x is 0, 1 or -1: no exponent makes the power longer
		switch {
		case y.Sign() == 0:
			return integer(1), nil
		case x.Sign() < 0 && y.Bit(0) == 0:
			return integer(1), nil
		}
		return bigInteger(x), nil
	}
	return checked(new(big.Int).Exp(x, y, nil))
}

func floatOp(op string, a, b *Value) (Value, error) {
	x, okX := a.asFloat()
	y, okY := b.asFloat()
	if !okX || !okY {
		return None, failf("int too large to convert to float")
	}
	switch op {
	case "+":
		return Float(x + y), nil
	case "-":
		return Float(x - y), nil
	case "*":
		return Float(x * y), nil
	case "/":
		if y == 0 {
			return None, failf("division by zero")
		}
		if a.kind != KindFloat && b.kind != KindFloat {
			return divideIntegers(a, b)
		}
		return Float(x / y), nil
	case "//", "%":
		if y == 0 {
			return None, failf("float floor division or modulo by zero")
		}
		div, mod := floorDivide(x, y)
		if op == "%" {
			return Float(mod), nil
		}
		return Float(div), nil
	}
	return floatPower(x, y)
}

// divideIntegers divides integers, and rounds only the quotient. If the operands were rounded to float64 first, the
// quotient would be less exact.
func divideIntegers(a, b *Value) (Value, error) {
	const exact = 1 << 53
	if a.kind != KindBig && b.kind != KindBig && max(a.num, -a.num) <= exact && max(b.num, -b.num) <= exact {
		return Float(float64(a.num) / float64(b.num)), nil
	}
	f, _ := new(big.Rat).SetFrac(a.bigOf(), b.bigOf()).Float64()
	return Float(f), nil
}

// floorDivide does the same as CPython's float_divmod.
func floorDivide(x, y float64) (div, mod float64) {
	mod = math.Mod(x, y)
	div = (x - mod) / y
	if mod != 0 {
		if (y < 0) != (mod < 0) {
			mod += y
			div--
		}
	} else {
		mod = math.Copysign(0, y)
	}
	if div == 0 {
		return math.Copysign(0, x/y), mod
	}
	floor := math.Floor(div)
	if div-floor > 0.5 {
		floor++
	}
	return floor, mod
}

func floatPower(x, y float64) (Value, error) {
	if x == 0 && y < 0 {
		return None, failf("0.0 cannot be raised to a negative power")
	}
	if x < 0 && y != math.Floor(y) && !math.IsInf(x, 0) && !math.IsInf(y, 0) && !math.IsNaN(y) {
		return None, failf("complex numbers are not supported")
	}
	f := pow(x, y)
	if math.IsInf(f, 0) && !math.IsInf(x, 0) && !math.IsInf(y, 0) {
		return None, failf("numerical result out of range")
	}
	return Float(f), nil
}

// pow returns x**y as CPython does. CPython calls C's pow, which nearly always rounds correctly. math.Pow does not
// always round correctly, so this function computes powers with integral exponents itself.
func pow(x, y float64) float64 {
	n := int64(y)
	if y != float64(n) || max(n, -n) > 1100 || x == 0 || math.IsInf(x, 0) || math.IsNaN(x) {
		return math.Pow(x, y)
	}
	z := big.NewFloat(1).SetPrec(256)
	b := new(big.Float).SetPrec(256).SetFloat64(x)
	for k := max(n, -n); k > 0; k >>= 1 {
		if k&1 == 1 {
			z.Mul(z, b)
		}
		b.Mul(b, b)
	}
	if n < 0 {
		z.Quo(big.NewFloat(1).SetPrec(256), z)
	}
	f, _ := z.Float64()
	return f
}
