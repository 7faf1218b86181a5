// Command engines measures routers on real engines: it brings up engines and routers, plays sets of requests through
// each router in turn, and writes what the engines and the clients saw. bench/engines/run.sh installs what it needs.
//
//	engines play -out results.jsonl     # plays what is not in the file yet, one line for each run
//	engines report -in results.jsonl    # the tables and the goals, as Markdown
//	engines fit -profile profile.json   # a profile of the engines, for the laboratory
//	engines list                        # sets, routers and how long they take
package main
