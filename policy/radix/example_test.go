package radix_test

import (
	"fmt"

	"github.com/warmpath/warmpath/policy/radix"
)

func Example() {
	tree := radix.NewText(64 << 20)
	root := tree.Plant()
	tree.Insert(root, 7, []byte("You are a helpful assistant. Hello"))

	var matches radix.Matches
	tree.Match(root, []byte("You are a helpful assistant. Bye"), &matches)
	fmt.Println(matches.Of(7), "of", matches.Total())
	// Output: 29 of 32
}
