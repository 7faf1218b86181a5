module github.com/warmpath/warmpath/bench

go 1.26.0

require github.com/zeebo/xxh3 v1.1.0

require (
	github.com/valyala/fastjson v1.6.10 // indirect
	go.starlark.net v0.0.0-20260908191801-89a6a09411d5 // indirect
)

require (
	github.com/klauspost/cpuid/v2 v2.2.10 // indirect
	github.com/warmpath/warmpath v0.0.0-00010101000000-000000000000
	golang.org/x/sys v0.48.0 // indirect
)

replace github.com/warmpath/warmpath => ../
