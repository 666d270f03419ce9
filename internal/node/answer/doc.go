// Package answer decodes the requests of a runtime and encodes the results. It touches
// neither the kernel nor the API server.
package answer
