// Package admin is the second listener: metrics and the questions of operators. The package shows the state of other
// components. It changes their state only through the functions in Parts.
//
//	GET  /metrics                    Prometheus text, never behind the key
//	GET  /admin/workers              workers and, per holder, trust and why, event stream, load   (Workers)
//	POST, PATCH, DELETE /admin/workers  add, change, drain and remove a worker                    (Joining, Change, Left)
//	GET  /admin/decisions?n=100      the last decisions, newest first                             (Decisions)
//	GET  /admin/index/snapshot       the index, for another router that starts (docs/warm-start.md)
//	GET  /admin/queue                the requests that wait for a worker                          (Queue)
//	POST /admin/explain?policy=NAME  where a request would go and why; it is not sent             (Explanation, Explanations)
//	POST /admin/reload               read the configuration file again                            (Reloaded)
//	GET  /health                     the process lives
//	GET  /readiness                  the gateway's readiness
//
// The JSON names of the types in answer.go and explanation.go are stable: fields may be added, but not renamed or
// removed. An error is {"error":{"message":"…"}}.
//
// On an address that is not loopback everything under /admin/ needs "Authorization: Bearer KEY", and Config.Validate
// refuses to start without a key. On loopback a key is optional.
package admin
