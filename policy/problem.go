package policy

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Problems collects the problems of parameters. The method Validate of a [Parameters] adds each problem, and returns
// the result of Join. The zero value is empty.
type Problems []error

// Join returns all problems as one error, nil when there are none.
func (p *Problems) Join() error { return errors.Join(*p...) }

// Add adds a problem of one key.
func (p *Problems) Add(key, format string, args ...any) {
	*p = append(*p, fmt.Errorf("%s: "+format, append([]any{key}, args...)...))
}

// Within adds a problem when v is outside [least, most] or is not a number.
func (p *Problems) Within(key string, v, least, most float64) {
	if !(v >= least && v <= most) {
		p.Add(key, "%v is outside %v..%v", v, least, most)
	}
}

// AtLeast adds a problem when v is below least, above 10^12 or not a number.
func (p *Problems) AtLeast(key string, v, least float64) {
	if !(v >= least && v <= MaxNumber) {
		p.Add(key, "%v is not a number from %v", v, least)
	}
}

// MaxNumber is the greatest value of a parameter: the product of a greater value with a number of tokens loses digits.
const MaxNumber = 1e12

// Section adds the problems of a group of keys. err is the result of the group's Validate.
func (p *Problems) Section(key string, err error) {
	if err == nil {
		return
	}
	list := []error{err}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		list = joined.Unwrap()
	}
	for _, e := range list {
		*p = append(*p, fmt.Errorf("%s.%w", key, e))
	}
}

// OneOf adds a problem when v is none of words.
func (p *Problems) OneOf(key, v string, words ...string) {
	if !slices.Contains(words, v) {
		p.Add(key, "%q is none of %s", v, strings.Join(words, ", "))
	}
}
