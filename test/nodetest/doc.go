// Package nodetest has the helpers that the tests of the node's packages share.
package nodetest
