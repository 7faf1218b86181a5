package block

// Prefix names the first tokens of a prompt, for whoever remembers something about them. The zero value names nothing.
type Prefix struct {
	Tokens int       // how many they are
	Mark   [2]uint64 // equal marks mean equal tokens; never both 0 when Tokens is not
}
