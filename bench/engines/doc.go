// Command engines measures routers on real engines. It starts engines and routers, plays sets of requests through one
// router after another, and writes the figures of engines and clients. bench/engines/run.sh installs everything that
// the command needs.
//
//	engines play -out results.jsonl     # plays the runs that are not in the file, one line for each
//	engines report -in results.jsonl    # writes the tables and the goals, as Markdown
//	engines fit -profile profile.json   # measures the engines and writes a profile for the simulator
//	engines list                        # prints sets, routers and how long they take
package main
