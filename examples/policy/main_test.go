package main

import "os"

func Example() {
	if err := run(os.Stdout); err != nil {
		panic(err)
	}
	// Output:
	// Neither worker has the prompt:
	//   http://spot:8000: score -64, its uncached tokens cost least
	//   http://reserved:8000: score -192, lower score, most by price: 3 against 1
	// The reserved worker has 48 of its 64 tokens:
	//   http://spot:8000: score -64, lower score, most by uncached: 64 against 16
	//   http://reserved:8000: score -48, its uncached tokens cost least
}
