// Command engines measures routers on real engines. It starts engines and routers, plays sets of requests through each
// router in turn, and writes the figures of engines and clients. bench/engines/run.sh installs what it needs.
//
//	engines play -out results.jsonl     # plays the runs that are not in the file, one line for each
//	engines report -in results.jsonl    # the tables and the goals, as Markdown
//	engines fit -profile profile.json   # a profile of the engines, for the laboratory
//	engines list                        # sets, routers and how long they take
package main
