// Package migrate turns configuration files of other routers into Warmpath's. It reads the files of the
// sgl-model-gateway family (SMG, and forks of vllm-router with --config-file), the router's part of the Helm values and
// the dynamic configuration of vLLM's production stack, llm-d's EndpointPickerConfig, and Dynamo's
// DynamoGraphDeployment. It knows nothing about the use of settings.
//
//	out, err := migrate.Convert("gateway.yaml", data)
//
// Each key of the old file becomes a setting, or a comment that says what to do instead. The new file passes
// config.Check.
package migrate
