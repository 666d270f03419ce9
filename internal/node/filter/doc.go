// Package filter keeps the node's packet filter as the records and the NodeNetworks say.
package filter
