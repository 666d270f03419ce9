package slim

import (
	"context"
	stdjson "encoding/json"
	"errors"
	"fmt"

	"github.com/go-json-experiment/json"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
)

// NewClient is a controller-runtime client: what manager.Options.NewClient takes.
// Of what the API server answers to the create of a PodAttachment, of which there is
// one in each pod's life, it asks for no more than it needs: client-go goes over the
// text of all of it several times, for nearly half of what the create costs the
// controller.
func NewClient(config *rest.Config, options client.Options) (client.Client, error) {
	standard, err := client.New(config, options)
	if err != nil {
		return nil, err
	}
	codecs := serializer.WithoutConversionCodecFactory{CodecFactory: serializer.NewCodecFactory(options.Scheme)}
	attachments, err := restClient(config, options.HTTPClient, v1alpha1.GroupVersion, codecs)
	if err != nil {
		return nil, fmt.Errorf("prepare to write PodAttachments: %w", err)
	}
	return creator{standard, attachments}, nil
}

// creator creates PodAttachments itself.
type creator struct {
	client.Client
	attachments rest.Interface
}

// metadataOnly asks for the metadata of what is created: the rest is known.
const metadataOnly = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1, application/json"

// Create is of client.Writer. Of what the API server makes of a PodAttachment it
// takes the metadata; there are no defaults of the rest.
func (c creator) Create(ctx context.Context, o client.Object, opts ...client.CreateOption) error {
	a, ok := o.(*v1alpha1.PodAttachment)
	if !ok || len(opts) > 0 {
		return c.Client.Create(ctx, o, opts...)
	}
	body, err := encode(a)
	if err != nil {
		return err
	}
	result := c.attachments.Post().Namespace(a.Namespace).Resource("podattachments").
		SetHeader("Accept", metadataOnly).SetHeader("Content-Type", runtime.ContentTypeJSON).Body(body).Do(ctx)
	if err := result.Error(); err != nil { // Raw has it in other words
		return err
	}
	answer, err := result.Raw()
	if err != nil {
		return err
	}
	return takeMetadata(a, answer)
}

// encode does what client-go does in many calls more: in a burst of pods hundreds of
// goroutines are here at once, with the stack that the deepest call needed.
func encode(a *v1alpha1.PodAttachment) ([]byte, error) {
	named := *a
	named.SetGroupVersionKind(attachmentKind)
	body, err := stdjson.Marshal(&named)
	if err != nil {
		return nil, fmt.Errorf("encode PodAttachment %s/%s: %w", a.Namespace, a.Name, err)
	}
	return body, nil
}

// takeMetadata takes over what the API server has added.
func takeMetadata(a *v1alpha1.PodAttachment, answer []byte) error {
	var created struct {
		Metadata metav1.ObjectMeta `json:"metadata"`
	}
	err := json.Unmarshal(answer, &created, asKept)
	if err == nil && created.Metadata.UID == "" {
		err = errors.New("it names no UID")
	}
	if err != nil {
		return fmt.Errorf("PodAttachment %s/%s was created, and the API server's answer cannot be read: %w", a.Namespace, a.Name, err)
	}
	a.ObjectMeta = created.Metadata
	return nil
}
