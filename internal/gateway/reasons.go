package gateway

// The reasons why a stream that lost its worker does not continue at another worker. They are labels of the metric
// warmpath_stream_recoveries_total, and docs/operate.md ("Streams that lose their worker") explains each.
const (
	reasonOff        = "off"
	reasonEndpoint   = "endpoint"
	reasonEngine     = "engine"
	reasonSampling   = "sampling"
	reasonChoices    = "choices"
	reasonPrompt     = "prompt"
	reasonPenalty    = "penalty"
	reasonGuided     = "guided"
	reasonTools      = "tools"
	reasonReasoning  = "reasoning"
	reasonParser     = "parser"
	reasonFields     = "fields"
	reasonIDs        = "ids"
	reasonLength     = "length"
	reasonFormat     = "format"
	reasonNoWorker   = "no_worker"
	reasonAttempts   = "attempts"
	reasonWorker     = "worker"
	reasonMaxTokens  = "max_tokens"
	reasonDetokenize = "detokenize"
	reasonText       = "text"
	reasonModel      = "model"
	reasonDiverged   = "diverged"
)

// The other results of mayContinue: in these cases the client lacks nothing that another worker could send.
const (
	clientLeft  = "gone"     // the client left, or the router ended the request; not counted
	streamEnded = "finished" // the client has the whole text; counted as recovered
)
