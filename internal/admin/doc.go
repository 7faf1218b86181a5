// Package admin is the second listener: metrics and everything an operator asks. It shows what others know and changes
// nothing but through the functions it is given.
//
//	GET  /metrics                    Prometheus text, never behind the key
//	GET  /admin/workers              workers and, per holder, trust and why, event stream, load   (Workers)
//	GET  /admin/decisions?n=100      the last decisions, newest first                             (Decisions)
//	GET  /admin/queue                who waits for a worker                                       (Queue)
//	POST /admin/explain?policy=NAME  a request's body: where would it go and why; it is not sent   (Explanation, Explanations)
//	POST /admin/reload               read the configuration file again                            (Reloaded)
//	GET  /health                     the process lives
//
// The JSON names of the types in answer.go are stable: fields may be added, none is renamed or removed. An error is
// {"error":{"message":"…"}}.
//
// On an address that is not loopback everything under /admin/ needs "Authorization: Bearer KEY", and Config.Validate
// refuses to start without a key. On loopback a key is optional.
package admin
