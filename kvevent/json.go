package kvevent

import (
	"math"

	"github.com/warmpath/warmpath/internal/jsonscan"
)

// maxDepth bounds how deep polled events may nest. The fields that are read are six deep.
const maxDepth = 64

// The functions of this file read single values of text that a jsonscan.Scanner has read without an error.

// jsonInteger returns an integer of -2^63..2^64-1 modulo 2^64. ok is false for every other value.
func jsonInteger(value []byte) (v uint64, negative, ok bool) {
	digits := value
	if len(value) > 0 && value[0] == '-' {
		negative, digits = true, value[1:]
	}
	for _, c := range digits {
		digit := uint64(c - '0')
		if digit > 9 || v > (math.MaxUint64-digit)/10 {
			return 0, false, false
		}
		v = v*10 + digit
	}
	if len(digits) == 0 || negative && v > 1<<63 {
		return 0, false, false
	}
	if negative {
		v = -v
	}
	return v, negative, true
}

// jsonSize returns an integer of 0..limit.
func jsonSize(value []byte, limit uint64) (v uint64, ok bool) {
	v, negative, ok := jsonInteger(value)
	if !ok || negative || v > limit {
		return 0, false
	}
	return v, true
}

func isNull(value []byte) bool { return string(value) == "null" }

func isArray(value []byte) bool { return len(value) > 0 && value[0] == '[' }

func isObject(value []byte) bool { return len(value) > 0 && value[0] == '{' }

func isEmptyArray(value []byte) bool {
	for range jsonscan.Items(value) {
		return false
	}
	return isArray(value)
}
