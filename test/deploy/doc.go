// Package deploy tests the manifests in deploy/ as a user applies them, against a real API server.
package deploy
