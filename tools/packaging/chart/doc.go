// Command chart writes what follows from the types of the configuration and from the
// templates of the Helm chart in deploy/chart: the chart's values and their schema, the page
// that describes them, its copies of the CRDs, and the manifests for kustomize, which are the
// templates with the default values.
//
// usage: chart ROOT, the root of the source.
package main
