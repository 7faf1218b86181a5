package jinja

import (
	"math"
	"math/big"
	"math/bits"
	"strings"
)

func (v *value) float() float64 { return math.Float64frombits(uint64(v.num)) }

func float(f float64) value { return value{kind: kindFloat, num: int64(math.Float64bits(f))} }

// asFloat is a number as a float; false when an integer is too large for one.
func (v *value) asFloat() (float64, bool) {
	switch v.kind {
	case kindFloat:
		return v.float(), true
	case kindBig:
		f, _ := new(big.Float).SetInt(v.bigOf()).Float64()
		return f, !math.IsInf(f, 0)
	}
	return float64(v.num), true
}

// maxBits bounds integers: templates count and format, they do not do cryptography.
const maxBits = 1 << 15

func checked(z *big.Int) (value, error) {
	if z.BitLen() > maxBits {
		return none, &limitError{"an integer is too long"}
	}
	return bigInteger(z), nil
}

func negate(v *value) (value, error) {
	switch v.kind {
	case kindBool, kindInt:
		if v.num != math.MinInt64 {
			return integer(-v.num), nil
		}
		fallthrough
	case kindBig:
		return bigInteger(new(big.Int).Neg(v.bigOf())), nil
	case kindFloat:
		return float(-v.float()), nil
	case kindUndefined:
		return none, using(v)
	}
	return none, failf("bad operand type for unary -: '%s'", v.typeName())
}

func positive(v *value) (value, error) {
	switch v.kind {
	case kindBool, kindInt:
		return integer(v.num), nil
	case kindBig, kindFloat:
		return *v, nil
	case kindUndefined:
		return none, using(v)
	}
	return none, failf("bad operand type for unary +: '%s'", v.typeName())
}

// arithmetic is a binary operator on any values.
func (r *run) arithmetic(op string, a, b *value) (value, error) {
	if a.kind == kindUndefined && !(op == "%" && a.kind == kindString) {
		return none, using(a)
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
		if a.kind == kindString {
			return r.percent(a, b)
		}
	}
	if b.kind == kindUndefined {
		return none, using(b)
	}
	return none, failf("unsupported operand type(s) for %s: '%s' and '%s'", op, a.typeName(), b.typeName())
}

// concatenate is + of texts and sequences.
func (r *run) concatenate(a, b *value) (value, bool, error) {
	switch {
	case a.kind == kindString && b.kind == kindString:
		x, y := a.str, b.str
		if a.safe && !b.safe {
			y = escapeHTML(y)
		} else if b.safe && !a.safe {
			x = escapeHTML(x)
		}
		return value{kind: kindString, safe: a.safe || b.safe, str: x + y}, true, r.grow(len(x) + len(y))
	case a.isSequence() && a.kind == b.kind:
		x, y := a.items(), b.items()
		if err := r.grow((len(x) + len(y)) * valueBytes); err != nil {
			return none, false, err
		}
		out := make([]value, 0, len(x)+len(y))
		return value{kind: a.kind, ref: &list{append(append(out, x...), y...)}}, true, nil
	}
	return none, false, nil
}

// repeat is * of a text or a sequence.
func (r *run) repeat(v, times *value) (value, bool, error) {
	n := 0
	if times.kind == kindBig {
		if times.bigOf().Sign() > 0 {
			n = math.MaxInt32
		}
	} else {
		n = int(max(0, min(times.num, math.MaxInt32)))
	}
	switch v.kind {
	case kindString:
		if err := r.growTimes(len(v.str), n); err != nil {
			return none, false, err
		}
		return value{kind: kindString, safe: v.safe, str: strings.Repeat(v.str, n)}, true, nil
	case kindList, kindTuple:
		items := v.items()
		if err := r.growTimes(len(items)*valueBytes, n); err != nil {
			return none, false, err
		}
		out := make([]value, 0, len(items)*n)
		for range n {
			if len(items) == 0 {
				break
			}
			out = append(out, items...)
		}
		return value{kind: v.kind, ref: &list{out}}, true, nil
	}
	return none, false, nil
}

// growTimes charges for n pieces of size bytes without overflowing.
func (r *run) growTimes(size, n int) error {
	hi, lo := bits.Mul64(uint64(size), uint64(n))
	if hi != 0 || lo > math.MaxInt32 {
		return &limitError{"it builds more than memory allows"}
	}
	return r.grow(int(lo))
}

func numberOp(op string, a, b *value) (value, error) {
	if a.kind == kindFloat || b.kind == kindFloat || op == "/" {
		return floatOp(op, a, b)
	}
	if a.kind != kindBig && b.kind != kindBig {
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
			return none, failf("integer division or modulo by zero")
		}
		m := new(big.Int)
		z.DivMod(x, y, m)
		// DivMod is Euclidean: for a negative divisor step to the floor.
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

// smallOp is integer arithmetic while it fits.
func smallOp(op string, x, y int64) (value, bool, error) {
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
			return none, false, failf("integer division or modulo by zero")
		}
		if x == math.MinInt64 && y == -1 {
			return none, false, nil
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
	return none, false, nil
}

func power(x, y *big.Int) (value, error) {
	if y.Sign() < 0 {
		a, b := bigInteger(x), bigInteger(y)
		return floatOp("**", &a, &b)
	}
	if x.BitLen() > 1 && (!y.IsInt64() || y.Int64()*int64(x.BitLen()-1) > maxBits) {
		return none, &limitError{"an integer is too long"}
	}
	if x.BitLen() <= 1 { // 0, 1 and -1: the power may be as long as it likes
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

func floatOp(op string, a, b *value) (value, error) {
	x, okX := a.asFloat()
	y, okY := b.asFloat()
	if !okX || !okY {
		return none, failf("int too large to convert to float")
	}
	switch op {
	case "+":
		return float(x + y), nil
	case "-":
		return float(x - y), nil
	case "*":
		return float(x * y), nil
	case "/":
		if y == 0 {
			return none, failf("division by zero")
		}
		if a.kind != kindFloat && b.kind != kindFloat {
			return divideIntegers(a, b)
		}
		return float(x / y), nil
	case "//", "%":
		if y == 0 {
			return none, failf("float floor division or modulo by zero")
		}
		div, mod := floorDivide(x, y)
		if op == "%" {
			return float(mod), nil
		}
		return float(div), nil
	}
	return floatPower(x, y)
}

// divideIntegers is exact where float64 division of rounded operands would not be.
func divideIntegers(a, b *value) (value, error) {
	const exact = 1 << 53
	if a.kind != kindBig && b.kind != kindBig && max(a.num, -a.num) <= exact && max(b.num, -b.num) <= exact {
		return float(float64(a.num) / float64(b.num)), nil
	}
	f, _ := new(big.Rat).SetFrac(a.bigOf(), b.bigOf()).Float64()
	return float(f), nil
}

// floorDivide is CPython's float_divmod.
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

func floatPower(x, y float64) (value, error) {
	if x == 0 && y < 0 {
		return none, failf("0.0 cannot be raised to a negative power")
	}
	if x < 0 && y != math.Floor(y) && !math.IsInf(x, 0) && !math.IsInf(y, 0) && !math.IsNaN(y) {
		return none, failf("complex numbers are not supported")
	}
	f := pow(x, y)
	if math.IsInf(f, 0) && !math.IsInf(x, 0) && !math.IsInf(y, 0) {
		return none, failf("numerical result out of range")
	}
	return float(f), nil
}

// pow is correctly rounded for integral exponents, where math.Pow is not and C's pow nearly is.
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
