// Package controller tests fairlead-controller as a process, or as several of which one leads, with a real API server.
package controller
