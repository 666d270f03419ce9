// Package nodetest has what the tests of the node's packages share.
package nodetest
