package placement_test

import (
	"fmt"

	"github.com/warmpath/warmpath/placement"
)

func Example() {
	store := placement.New(placement.Config{Keys: placement.Text, Bytes: 64 << 20})
	store.Learn(placement.First, 7, []byte("You are a helpful assistant. Hello"), 0)

	var matches placement.Matches
	store.Match(placement.First, []byte("You are a helpful assistant. Bye"), 0, &matches)
	fmt.Println(matches.Of(7), "of", matches.Total())
	// Output: 29 of 32
}
