// Package connector knows what each KV connector of the engines needs in the bodies of a prefill leg and a decode leg:
// which fields the router writes, in which order the two calls are made, what the decode leg takes over from the answer
// of the prefill leg, and how a leg is aborted. It does not know which workers serve a request, and sends nothing.
//
// A connector is data: one file connectors/NAME.json, and its script testdata/NAME.txt, which shows what is written.
// docs/connectors.md describes the form of the file. Bodies are spliced: all bytes of the client's that a connector
// does not name stay as they are, so an engine sees the same messages, tools and numbers.
//
//	c, ok := connector.Find("nixl")
//	body, err := c.AppendPrefill(nil, client, &pair) // is sent to the prefill worker
//	body, err = c.AppendDecode(nil, client, &pair, answer) // answer: the body of its answer
//
// The functions of this package are safe for concurrent use.
package connector
