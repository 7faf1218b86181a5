// Package demo shows what Warmpath does on one machine in half a minute, without a download. Three policies play the
// same work at the same time: round robin, another project's cache_aware and the default policy. Each has four mock
// engines and a gateway of its own. The package is a client of the public API: it prints what the answers' headers and
// usage say, and does not look inside the router.
package demo
