package config

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"
)

// units are the suffixes for numbers of bytes. The first four are the binary units, the largest first. B comes last,
// because the other suffixes end with it. Every 64-bit integer in the file is a number of bytes.
var units = []struct {
	suffix string
	bytes  int64
}{
	{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10},
	{"TB", 1e12}, {"GB", 1e9}, {"MB", 1e6}, {"KB", 1e3}, {"kB", 1e3}, {"B", 1},
}

// setScalar sets v to a scalar of the file. Only the type of v decides how to read the scalar: '5' can be a number, and
// 5 a text.
func setScalar(v reflect.Value, node ast.Node) error {
	switch v.Interface().(type) {
	case time.Duration:
		d, err := time.ParseDuration(trimmed(node))
		if err != nil {
			return fmt.Errorf("%q is not a duration such as 50ms, 2s or 1m30s", trimmed(node))
		}
		v.SetInt(int64(d))
		return nil
	case int64:
		n, err := parseBytes(trimmed(node))
		if err == nil {
			v.SetInt(n)
		}
		return err
	}
	err := setSimple(v, node)
	switch {
	case errors.Is(err, strconv.ErrRange):
		return fmt.Errorf("%q is out of range", trimmed(node))
	case err != nil:
		return fmt.Errorf("%q is not %s", trimmed(node), kindName(v.Type()))
	}
	return nil
}

// setSimple sets v to a text, a truth value or a number.
func setSimple(v reflect.Value, node ast.Node) error {
	switch v.Kind() {
	case reflect.String:
		v.SetString(text(node))
	case reflect.Bool:
		b, ok := node.(*ast.BoolNode) // a 'true' in quotes is a text
		if !ok {
			return strconv.ErrSyntax
		}
		v.SetBool(b.Value)
	case reflect.Int:
		n, err := strconv.ParseInt(numeral(node), 10, strconv.IntSize)
		v.SetInt(n)
		return err
	case reflect.Uint64:
		n, err := strconv.ParseUint(numeral(node), 10, 64)
		v.SetUint(n)
		return err
	case reflect.Float64:
		f, err := strconv.ParseFloat(numeral(node), 64)
		v.SetFloat(f)
		return err
	default:
		panic("bug: no way to read a " + v.Type().String())
	}
	return nil
}

// numeral returns the text of a number in a form that strconv reads: YAML also allows 0x10, 0o17, 1_000, 5.0 and .inf.
func numeral(node ast.Node) string {
	switch n := node.(type) {
	case *ast.IntegerNode:
		return fmt.Sprint(n.Value)
	case *ast.FloatNode:
		return strconv.FormatFloat(n.Value, 'f', -1, 64)
	case *ast.InfinityNode:
		return fmt.Sprint(n.Value)
	case *ast.NanNode:
		return "NaN"
	}
	return trimmed(node)
}

func trimmed(node ast.Node) string { return strings.TrimSpace(text(node)) }

// parseBytes reads a number of bytes, with or without a unit: 67108864, 64MiB, 1.5 GiB.
func parseBytes(text string) (int64, error) {
	factor := int64(1)
	number := text
	for _, u := range units {
		if rest, ok := strings.CutSuffix(text, u.suffix); ok {
			number, factor = strings.TrimSpace(rest), u.bytes
			break
		}
	}
	if whole, err := strconv.ParseInt(strings.ReplaceAll(number, "_", ""), 10, 64); err == nil {
		if whole > math.MaxInt64/factor || whole < math.MinInt64/factor {
			return 0, fmt.Errorf("%q does not fit in 64 bits", text)
		}
		return whole * factor, nil
	}
	f, err := strconv.ParseFloat(number, 64)
	if err != nil || !(math.Abs(f*float64(factor)) < math.MaxInt64) || factor == 1 {
		return 0, fmt.Errorf("%q is not a number of bytes such as 67108864, 64MiB or 1.5GiB: the units are KiB, MiB, GiB, TiB (powers of 1024), "+
			"KB, MB, GB, TB (powers of 1000) and B", text)
	}
	return int64(f * float64(factor)), nil
}
