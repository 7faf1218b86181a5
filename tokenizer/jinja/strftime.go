package jinja

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// strftime does the same as Python's datetime.strftime on glibc in the C locale, for a time without a zone: %z and %Z
// are empty. It knows glibc's flags "-" (no padding), "_" (padding with spaces), "0" (padding with zeros) and "^"
// (upper case).
func strftime(t time.Time, format string) (string, error) {
	var b strings.Builder
	for {
		i := strings.IndexByte(format, '%')
		if i < 0 || i+1 >= len(format) {
			b.WriteString(format)
			return b.String(), nil
		}
		b.WriteString(format[:i])
		rest := format[i+1:]
		flag := byte(0)
		if strings.IndexByte("-_0^", rest[0]) >= 0 && len(rest) > 1 {
			flag, rest = rest[0], rest[1:]
		}
		s, err := directive(t, rest[0], flag)
		if err != nil {
			return "", err
		}
		if flag == '^' {
			s = strings.ToUpper(s)
		}
		b.WriteString(s)
		format = rest[1:]
	}
}

// numeric has the directives that print a padded number.
var numeric = map[byte]struct {
	width int
	pad   byte
	of    func(time.Time) int
}{
	'd': {2, '0', func(t time.Time) int { return t.Day() }},
	'e': {2, ' ', func(t time.Time) int { return t.Day() }},
	'm': {2, '0', func(t time.Time) int { return int(t.Month()) }},
	'y': {2, '0', func(t time.Time) int { return t.Year() % 100 }},
	'Y': {4, '0', func(t time.Time) int { return t.Year() }},
	'C': {2, '0', func(t time.Time) int { return t.Year() / 100 }},
	'H': {2, '0', func(t time.Time) int { return t.Hour() }},
	'k': {2, ' ', func(t time.Time) int { return t.Hour() }},
	'I': {2, '0', func(t time.Time) int { return (t.Hour()+11)%12 + 1 }},
	'l': {2, ' ', func(t time.Time) int { return (t.Hour()+11)%12 + 1 }},
	'M': {2, '0', func(t time.Time) int { return t.Minute() }},
	'S': {2, '0', func(t time.Time) int { return t.Second() }},
	'j': {3, '0', func(t time.Time) int { return t.YearDay() }},
	'u': {1, '0', func(t time.Time) int { return (int(t.Weekday())+6)%7 + 1 }},
	'w': {1, '0', func(t time.Time) int { return int(t.Weekday()) }},
	'U': {2, '0', func(t time.Time) int { return (t.YearDay() + 6 - int(t.Weekday())) / 7 }},
	'W': {2, '0', func(t time.Time) int { return (t.YearDay() + 6 - (int(t.Weekday())+6)%7) / 7 }},
	'V': {2, '0', func(t time.Time) int { _, w := t.ISOWeek(); return w }},
	'G': {4, '0', func(t time.Time) int { y, _ := t.ISOWeek(); return y }},
	'g': {2, '0', func(t time.Time) int { y, _ := t.ISOWeek(); return y % 100 }},
}

// composed has the directives that stand for a longer format.
var composed = map[byte]string{
	'D': "%m/%d/%y", 'F': "%Y-%m-%d", 'T': "%H:%M:%S", 'R': "%H:%M", 'r': "%I:%M:%S %p", 'c': "%a %b %e %H:%M:%S %Y",
	'x': "%m/%d/%y", 'X': "%H:%M:%S",
}

func directive(t time.Time, c, flag byte) (string, error) {
	if n, ok := numeric[c]; ok {
		s := strconv.Itoa(n.of(t))
		pad := n.pad
		switch flag {
		case '-':
			return s, nil
		case '_':
			pad = ' '
		case '0':
			pad = '0'
		}
		if c == 'Y' || c == 'G' { // glibc does not pad years
			return s, nil
		}
		for len(s) < n.width {
			s = string(pad) + s
		}
		return s, nil
	}
	if format, ok := composed[c]; ok {
		return strftime(t, format)
	}
	switch c {
	case 'a':
		return t.Weekday().String()[:3], nil
	case 'A':
		return t.Weekday().String(), nil
	case 'b', 'h':
		return t.Month().String()[:3], nil
	case 'B':
		return t.Month().String(), nil
	case 'p':
		return map[bool]string{true: "PM", false: "AM"}[t.Hour() >= 12], nil
	case 'P':
		return map[bool]string{true: "pm", false: "am"}[t.Hour() >= 12], nil
	case 'f':
		return fmt.Sprintf("%06d", t.Nanosecond()/1000), nil
	case 'z', 'Z', ':':
		return "", nil
	case 'n':
		return "\n", nil
	case 't':
		return "\t", nil
	case '%':
		return "%", nil
	case 's':
		return "", failf("strftime directive %%s depends on the machine's zone")
	}
	return "%" + string(c), nil
}
