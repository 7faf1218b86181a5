// Package demo shows what Warmpath does on one machine in half a minute, with no download. Three policies play the same
// work at the same time: round robin, a peer's cache_aware and the default policy. Each has four mock engines and a
// gateway of its own. The package is a client of the public surface: what it prints comes from the answers' headers and
// usage, not from inside the router. It refuses to know how a policy decides.
package demo
