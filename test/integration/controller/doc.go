// Package controller runs fairlead-controller as one or more processes with a real API server. If there are more, one leads.
package controller
