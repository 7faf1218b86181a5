package harmony_test

import (
	"fmt"
	"time"

	"github.com/warmpath/warmpath/tokenizer/harmony"
	"github.com/warmpath/warmpath/tokenizer/jinja"
)

func Example() {
	var schemas jinja.Decoder
	schema, err := schemas.Decode([]byte(`{"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	developer, err := harmony.Developer("Be brief.", []harmony.Tool{{Name: "weather", Parameters: schema}})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, p := range harmony.Render([]harmony.Message{
		{Author: "system", Texts: []string{harmony.System("low", time.Date(2026, 11, 23, 0, 0, 0, 0, time.UTC), true)}},
		{Author: "developer", Texts: []string{developer}},
		{Author: "user", Texts: []string{"Is it raining in Paris?"}},
	}) {
		fmt.Println(p.Special + p.Text)
	}
	// Output:
	// <|start|>
	// system
	// <|message|>
	// You are ChatGPT, a large language model trained by OpenAI.
	// Knowledge cutoff: 2024-06
	// Current date: 2026-11-23
	//
	// Reasoning: low
	//
	// # Valid channels: analysis, commentary, final. Channel must be included for every message.
	// Calls to these tools must go to the commentary channel: 'functions'.
	// <|end|>
	// <|start|>
	// developer
	// <|message|>
	// # Instructions
	//
	// Be brief.
	//
	// # Tools
	//
	// ## functions
	//
	// namespace functions {
	//
	// type weather = (_: {
	// city: string,
	// }) => any;
	//
	// } // namespace functions
	// <|end|>
	// <|start|>
	// user
	// <|message|>
	// Is it raining in Paris?
	// <|end|>
	// <|start|>
	// assistant
}
