//go:build race

package app_test

// raced: the race detector makes everything some ten times slower.
const raced = true
