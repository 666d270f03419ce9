// Package ui shows a live picture of a cluster in a browser. The model is pure: it makes rows
// for the page of the objects that are watched. The stream batches the rows that changed, and
// the server sends them to the pages by server-sent events.
package ui
