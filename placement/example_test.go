package placement_test

import (
	"fmt"

	"github.com/warmpath/warmpath/placement"
)

func Example() {
	tree := placement.NewText(64 << 20)
	root := tree.Plant()
	tree.Insert(root, 7, []byte("You are a helpful assistant. Hello"))

	var matches placement.Matches
	tree.Match(root, []byte("You are a helpful assistant. Bye"), &matches)
	fmt.Println(matches.Of(7), "of", matches.Total())
	// Output: 29 of 32
}
