package admin

// OpenAPI is the description of the routes.
var OpenAPI = openAPI

// Routes returns the methods that each path answers.
func Routes(a *Admin) map[string][]string { return a.methods }
