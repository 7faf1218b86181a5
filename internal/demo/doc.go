// Package demo shows what Warmpath does on one machine in half a minute, with no download: four mock engines, the real
// gateway, and a workload of agent-like conversations, run round-robin and then kv_aware on fresh engines. It is a client
// of the public surface: what it prints comes from answers' headers and usage, not from the router's insides.
package demo
