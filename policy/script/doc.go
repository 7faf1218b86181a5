// Package script is a policy whose rule is a file in Starlark, a small language like Python
// (github.com/bazelbuild/starlark, spec.md). It is for people who do not write Go:
//
//	def choose(request, workers):
//	    return [w.match - 0.5 * w.work for w in workers]  # a score for each worker
//
//	spec, err := warmpath.PolicyKinds().Parse("script:file=choose.star")
//
// docs/policies/script.md describes what a script can read and return. The package runs scripts in a sandbox: a script
// reads no file, no clock and no environment, and has a bounded number of steps and a bounded memory. It knows neither
// where candidates come from nor what other policies do. If a script fails, the default policy decides.
//
// It is the only user of the interpreter (go.starlark.net). Its decisions allocate memory, unlike those of other
// policies.
package script
