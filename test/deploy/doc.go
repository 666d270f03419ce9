// Package deploy tests the manifests in deploy/ against a real API server, applied as a
// user applies them.
package deploy
